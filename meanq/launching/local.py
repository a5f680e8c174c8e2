"""hydra/launcher=local: several runs at once on one machine, each in a process of its own, cores divided among them."""

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

from hydra import version
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.launch import frozen_configs, result
from meanq.launching.study import override_key
from meanq.training.signals import ONE_CTRL_C_SECONDS, hold_stop_signals

# What stops a sweep, and what its runs are sent then. A closed terminal stops it as `kill` does.
_STOPPING = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGUSR2,
}
HYDRA_VERSION = "1.3"
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.2  # at how busy the cores are
_LAST_WORDS_SECONDS = 2.0


class LocalRunError(RuntimeError):
    """A run in a process of its own ended badly."""


@dataclass(frozen=True)
class Share:
    """What one of the runs at once may use."""

    cores: tuple[int, ...]
    gpu: str | None


def divide(
    cores: Sequence[int], gpus: Sequence[str], runs: int, jobs: int | None = None, threads: int | None = None
) -> list[Share]:
    """One share per run at once, all of the same size; `gpus` are named where the runs use them."""
    if jobs is None:
        jobs = min(len(gpus), len(cores)) if gpus else len(cores) // (threads or 1)
    jobs = max(1, min(jobs, runs))
    each = threads or max(1, len(cores) // jobs)
    if jobs > 1 and jobs * each > len(cores):
        fields = f"hydra.launcher.jobs={jobs}" + (f" with {threads} threads each" if threads else "")
        raise ConfigError(f"{fields}: here are {len(cores)} cores; write hydra.launcher.jobs={len(cores) // each or 1}")
    return [Share(tuple(cores[i * each : (i + 1) * each]), gpus[i % len(gpus)] if gpus else None) for i in range(jobs)]


def run_names(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """What tells these runs apart: the overrides that not all of them have, padded to one width."""
    common = set(job_overrides[0]).intersection(*job_overrides)
    names = []
    for overrides in job_overrides:
        telling = [o for o in overrides if o not in common and override_key(o) != "label"]
        names.append(" ".join(telling) or "run")
    width = max(map(len, names))
    return [name.ljust(width) for name in names]


class LocalLauncher(Launcher):
    """Starts a process per run, as many at once as there are shares."""

    def __init__(self, jobs: int | None, threads: int | None) -> None:
        for name, value in (("jobs", jobs), ("threads", threads)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"hydra.launcher.{name}={value}: write a whole number of 1 or more, or null")
        self._jobs, self._threads = jobs, threads
        self._config = DictConfig({})
        self._context: HydraContext | None = None
        self._task_function: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra gives to every launcher."""
        self._context, self._task_function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all; whoever fails, fails alone. A signal that stops the sweep is passed on and waited for."""
        from meanq.training.machine import MEMORY_SHARE, available_memory  # which takes torch

        frozen = frozen_configs(self._context)
        configs = [frozen.config(overrides) for overrides in job_overrides]
        directories = [frozen.directory(overrides) for overrides in job_overrides]
        names = run_names(job_overrides)
        threads = max((c.threads for c in configs if c.threads), default=self._threads)
        shares = divide(available_cores(), gpus_of(configs), len(configs), self._jobs, threads)
        each = len(shares[0].cores)
        # A replay is filled bit by bit, so what a run finds free says nothing of what the others are going to take.
        environment = {MEMORY_SHARE: str(available_memory() // len(shares))}
        _say(f"{len(configs)} runs, {len(shares)} at once with {each} core(s) each; lines begin with the run's name")
        waiting = list(range(len(configs)))
        free = list(shares)
        running: dict[int, _Child] = {}
        failures: dict[int, LocalRunError] = {}
        with _Signals() as signals:
            while running or (waiting and signals.stop is None):
                while waiting and free and signals.stop is None:
                    i = waiting.pop(0)
                    payload = self._payload(job_overrides[i], initial_job_idx + i)
                    running[i] = _Child(names[i], payload, free.pop(0), environment, configs[i].device)
                if signals.stop is not None and signals.newly_stopped():
                    _say(f"stopping {len(running)} run(s), which save first; another Ctrl-C kills them")
                    for child in running.values():
                        child.process.send_signal(_STOPPING[signals.stop])
                if signals.kill:
                    for child in running.values():
                        child.process.kill()
                for i in [i for i, child in running.items() if child.process.poll() is not None]:
                    child = running.pop(i)
                    free.append(child.share)
                    outcome = child.end()
                    if outcome:
                        failures[i] = LocalRunError(f"{directories[i]}: {describe(outcome)}")
                    how = "killed" if signals.kill else describe(outcome)
                    left = len(waiting) + len(running)
                    _say(f"{names[i]} | {how}; {left} run(s) to go")
                time.sleep(_POLL_SECONDS)
        if signals.stop == signal.SIGINT:
            raise KeyboardInterrupt
        if signals.stop is not None:
            raise SystemExit(128 + signals.stop)
        return [result(overrides, failures.get(i)) for i, overrides in enumerate(job_overrides)]

    def _payload(self, overrides: Sequence[str], number: int) -> tuple[Any, ...]:
        assert self._context is not None
        context = HydraContext(
            config_loader=frozen_configs(self._context).only(overrides),  # type: ignore[arg-type]
            callbacks=self._context.callbacks,
        )
        return context, self._task_function, self._config, list(overrides), number


class _Child:
    """A run in a process of its own, and the threads that pass on what it says."""

    def __init__(self, name: str, payload: tuple[Any, ...], share: Share, more: Mapping[str, str], device: str) -> None:
        self.share = share
        threads = str(len(share.cores))
        environment = {**os.environ, **more, "PYTHONUNBUFFERED": "1"}
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.pop("SLURM_CPUS_PER_TASK", None)  # of the whole allocation, where the sweep runs inside a job
        if share.gpu is not None and ":" not in device:  # cuda:1 is a wish to be respected
            environment["CUDA_VISIBLE_DEVICES"] = share.gpu
        with tempfile.TemporaryFile() as file:
            pickle.dump(share.cores, file)
            pickle.dump(payload, file)
            file.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from meanq.launching.local import child; child()"],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # so that Ctrl-C in a terminal reaches it once, through us
            )
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._speakers = [threading.Thread(target=_pass_on, args=(name, *pair), daemon=True) for pair in streams]
        for speaker in self._speakers:
            speaker.start()

    def end(self) -> int:
        """Its exit code, after its last words. A process it left behind may hold the pipe open: no waiting for that."""
        for speaker in self._speakers:
            speaker.join(_LAST_WORDS_SECONDS)
        return self.process.returncode


@dataclass
class _Signals:
    """Notes what the sweep is asked to do, while it is entered."""

    stop: signal.Signals | None = None
    kill: bool = False
    _when: float = 0.0
    _seen: bool = False
    _before: dict[signal.Signals, Any] = field(default_factory=dict)

    def newly_stopped(self) -> bool:
        """Once, when the first signal has come."""
        new = self.stop is not None and not self._seen
        self._seen = self.stop is not None
        return new

    def __enter__(self) -> "_Signals":
        for number in _STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup and the like
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stop is None:
            self.stop, self._when = signal.Signals(number), time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._when > ONE_CTRL_C_SECONDS:
            self.kill = True


_speaking = threading.Lock()


def _say(line: str, stream: IO[str] | None = None) -> None:
    with _speaking:
        print(line, file=stream or sys.stdout, flush=True)


def _pass_on(name: str, source: IO[str], to: IO[str]) -> None:
    for line in source:
        _say(f"{name} | {line.rstrip()}", to)


def available_cores() -> list[int]:
    """Those that this process may use; inside a SLURM job, no more than that has.

    Idle ones come first: runs are bound to their cores, and another sweep may have bound its own to the others.
    """
    import psutil

    cores = sorted(os.sched_getaffinity(0))
    load = dict(enumerate(psutil.cpu_percent(interval=_LOOK_SECONDS, percpu=True)))
    cores.sort(key=lambda core: load.get(core, 0.0) > 50)
    return cores[: int(os.environ.get("SLURM_CPUS_PER_TASK") or len(cores))]


def gpus_of(configs: Sequence[Config]) -> list[str]:
    """The GPUs that this process may use, by the names CUDA has for them; none where all runs are on the CPU."""
    if all(config.device == "cpu" for config in configs):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def describe(code: int) -> str:
    """How a process ended, by its exit code."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; was memory short?" if -code == signal.SIGKILL else ""
        return f"killed by signal {-code} ({name}{hint})"
    if code > 128:
        return f"stopped by signal {code - 128}"
    return "finished" if code == 0 else f"failed with exit code {code}"


def child() -> None:
    """One run; what it is comes through standard input."""
    _stop_with_parent()
    hold_stop_signals()
    outlive_terminal()
    os.sched_setaffinity(0, pickle.load(sys.stdin.buffer))  # before anything counts the cores
    try:
        context, task_function, master_config, overrides, number = pickle.load(sys.stdin.buffer)
        setup_globals()
        version.setbase(HYDRA_VERSION)
        config = context.config_loader.load_sweep_config(master_config, overrides)
        with open_dict(config.hydra.job):
            config.hydra.job.id = config.hydra.job.num = number
        returned = run_job(
            hydra_context=context,
            task_function=task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if returned.status == JobStatus.FAILED:
        print(returned._return_value, file=sys.stderr)
        sys.exit(1)


def _stop_with_parent() -> None:
    """Where the process that started this one is killed, stop as if by `kill`. Linux can do that, others cannot."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
