"""`meanq doctor`: one screen about the machine, and a comparison of its devices with the CPU."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from meanq.launching import doctor
from meanq.replay.frames import FrameRing

MEMORY_FAULTS = doctor.memory_faults


class Forgetful(torch.Generator):
    """Its state cannot be restored."""

    def set_state(self, state: torch.Tensor) -> "Forgetful":
        return self


KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> doctor.Steps:
    """A machine whose only GPU is its CPU, and steps that were computed once."""
    made = doctor.Steps(np.linspace(1, 0.5, doctor.STEPS), np.ones((2, 4, 3)), 0.001)
    monkeypatch.setattr(doctor, "facts", lambda: [("torch", "none")])
    monkeypatch.setattr(doctor, "devices", lambda: [torch.device("cuda", 0)])
    monkeypatch.setattr(doctor, "memory_faults", lambda device: iter(()))
    return made


def test_one_screen_about_this_machine() -> None:
    command = [sys.executable, "-m", "meanq", "doctor"]  # a process of its own, since W&B remembers a key
    done = subprocess.run(command, env={**os.environ, "WANDB_API_KEY": KEY}, capture_output=True, text=True)
    out = done.stdout
    assert done.returncode == 0, done.stderr
    lines = out.splitlines()
    names = {line.split()[0] for line in lines}
    assert {"torch", "GPU", "driver", "compiler", "cores", "memory", "SLURM", "W&B", "learner"} <= names
    assert len(lines) <= 24 and max(map(len, lines)) <= 140
    assert "has a key" in out and KEY not in out and KEY[:8] not in out


def test_the_steps_are_the_same_each_time_and_learn() -> None:
    first, again = (doctor.learner_steps(torch.device("cpu"), "categorical") for _ in range(2))
    assert doctor.difference(first, again) == 0 and first.losses[-1] < first.losses[0]


def test_a_device_that_agrees(
    steps: doctor.Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "learner_steps", lambda *_: replace(steps, values=steps.values * (1 + 1e-5)))
    assert doctor.main([]) == 0
    out, err = capfd.readouterr()
    assert out.count("as on the CPU") == 4 and "NOT" not in out and err == ""  # two cases, compiled and not
    assert out.count("the same bits when made again") == 4 and "cuda:0: frames and random numbers are right" in out


@pytest.mark.parametrize("change", [1.1, np.nan, np.inf])
def test_a_device_that_differs_is_to_be_reported(
    steps: doctor.Steps, change: float, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def computed(device: torch.device, *_: object) -> doctor.Steps:
        return replace(steps, values=steps.values * change) if device.type == "cuda" else steps

    monkeypatch.setattr(doctor, "learner_steps", computed)
    assert doctor.main([]) == 1
    out, err = capfd.readouterr()
    assert out.count("NOT AS on the CPU") == 4
    assert err.startswith("meanq: cuda:0: not as it should be; report this whole screen") and err.count("\n") == 1


def test_a_device_that_fails_is_to_be_reported(
    steps: doctor.Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def computed(device: torch.device, *_: object) -> doctor.Steps:
        if device.type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")
        return steps

    monkeypatch.setattr(doctor, "learner_steps", computed)
    assert doctor.main([]) == 1
    out, err = capfd.readouterr()
    assert "on cuda:0, compiled: FAILED: RuntimeError: CUDA error: no kernel image is available for" in out
    assert "Traceback" not in err


def test_a_device_that_rounds_otherwise_each_time_is_to_be_reported(
    steps: doctor.Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run on it could not be resumed exactly."""
    calls: list[int] = []

    def computed(device: torch.device, *_: object) -> doctor.Steps:
        calls.append(1)
        return replace(steps, values=steps.values * (1 + 1e-6 * len(calls)))

    monkeypatch.setattr(doctor, "learner_steps", computed)
    assert doctor.main([]) == 1
    out, _ = capfd.readouterr()
    assert out.count("as on the CPU") == out.count("OTHER bits when made again") == 4


def test_memory_that_is_wrong_is_to_be_reported(
    steps: doctor.Steps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert list(MEMORY_FAULTS(torch.device("cpu"))) == []
    gather = FrameRing.gather

    def mixed_up(ring: FrameRing, slots: np.ndarray) -> torch.Tensor:
        return gather(ring, slots if ring._host is not None else slots[::-1].copy())

    monkeypatch.setattr(FrameRing, "gather", mixed_up)
    monkeypatch.setattr(torch, "Generator", Forgetful)
    wrong = list(MEMORY_FAULTS(torch.device("cpu")))
    assert wrong == ["frames", "random numbers after their state was restored"]
    monkeypatch.setattr(doctor, "memory_faults", lambda device: iter(wrong))
    monkeypatch.setattr(doctor, "learner_steps", lambda *_: steps)
    assert doctor.main([]) == 1
    assert "cuda:0: WRONG: frames" in capfd.readouterr().out
