"""hydra/launcher=local: several runs at once on one machine, each in its own process with its own cores."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from hydra import version
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.hydra_bridge import run_in_this_process
from meanq.launching.jobs import override_key
from meanq.launching.launch import context_for, frozen_configs, job_return
from meanq.training.signals import StopSignals, hold_stop_signals

_POLL_SECONDS = 0.1
_CORE_LOAD_SECONDS = 0.2  # over which the load of the cores is measured
_LAST_LINES_SECONDS = 2.0


class LocalRunError(RuntimeError):
    """A run in another process failed or was killed."""


@dataclass(frozen=True)
class Share:
    """The cores and the GPU of one run."""

    cores: tuple[int, ...]
    gpu: str | None


def divide(
    cores: Sequence[int], gpus: Sequence[str], runs: int, jobs: int | None = None, threads: int | None = None
) -> list[Share]:
    """Divide a machine into equal shares, one per run at once. `gpus` is empty where the runs use none."""
    if jobs is None:
        jobs = min(len(gpus), len(cores)) if gpus else len(cores) // (threads or 1)
    jobs = max(1, min(jobs, runs))
    each = threads or max(1, len(cores) // jobs)
    if jobs > 1 and jobs * each > len(cores):
        fields = f"hydra.launcher.jobs={jobs}" + (f" with {threads} threads each" if threads else "")
        raise ConfigError(f"{fields}: here are {len(cores)} cores; write hydra.launcher.jobs={len(cores) // each or 1}")
    return [Share(tuple(cores[i * each : (i + 1) * each]), gpus[i % len(gpus)] if gpus else None) for i in range(jobs)]


def run_names(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """Name each run by the overrides that not all runs share, padded to one width."""
    common = set(job_overrides[0]).intersection(*job_overrides)
    names = []
    for overrides in job_overrides:
        own = [o for o in overrides if o not in common and override_key(o) != "label"]
        names.append(" ".join(own) or "run")
    width = max(map(len, names))
    return [name.ljust(width) for name in names]


class LocalLauncher(Launcher):
    """Starts one process per run, as many at once as there are shares."""

    def __init__(self, jobs: int | None, threads: int | None) -> None:
        for name, value in (("jobs", jobs), ("threads", threads)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"hydra.launcher.{name}={value}: write a whole number of 1 or more, or null")
        self._jobs, self._threads = jobs, threads

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store what Hydra gives to every launcher."""
        self._context, self._task_function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs; a failure of one does not affect the others. A stop signal is passed on to the runs."""
        from meanq.training.machine import MEMORY_SHARE, available_memory  # imports torch

        frozen = frozen_configs(self._context)
        configs = [frozen.config(overrides) for overrides in job_overrides]
        names = run_names(job_overrides)
        threads = max((c.threads for c in configs if c.threads), default=self._threads)
        free = divide(available_cores(), gpus_of(configs), len(configs), self._jobs, threads)
        # Replays fill up slowly, so the memory that is free when a run starts is not all for that run.
        memory = {MEMORY_SHARE: str(available_memory() // len(free))}
        _say(
            f"{len(configs)} runs, {len(free)} at once with {len(free[0].cores)} core(s) each; "
            "lines begin with the run's name"
        )
        waiting = list(range(len(configs)))
        running: dict[int, _Child] = {}
        failures: dict[int, LocalRunError] = {}
        stopping = False
        with StopSignals() as signals:  # leaving it exits as the signal demands
            try:
                while running or (waiting and not stopping):
                    while waiting and free and signals.wanted is None:
                        i = waiting.pop(0)
                        overrides = list(job_overrides[i])
                        context = context_for(self._context, overrides)
                        job = (context, self._task_function, self._config, overrides, initial_job_idx + i)
                        running[i] = _Child(names[i], job, free.pop(0), memory, configs[i].device)
                    if signals.wanted is not None and not stopping:
                        stopping = True
                        _say(f"stopping {len(running)} run(s), which save first; another Ctrl-C kills them")
                        for child in running.values():
                            child.stop(signals.wanted)
                    for i in [i for i, child in running.items() if child.process.poll() is not None]:
                        child = running.pop(i)
                        free.append(child.share)
                        code = child.exit_code()
                        if code:
                            failures[i] = LocalRunError(f"{frozen.directory(job_overrides[i])}: {describe(code)}")
                        _say(f"{names[i]} | {describe(code)}; {len(waiting) + len(running)} run(s) to go")
                    time.sleep(_POLL_SECONDS)
            except KeyboardInterrupt:  # the second Ctrl-C
                for i, child in running.items():
                    child.process.kill()
                    child.exit_code()
                    _say(f"{names[i]} | killed; {len(waiting)} run(s) to go")
                raise
        return [job_return(overrides, failures.get(i)) for i, overrides in enumerate(job_overrides)]


class _Child:
    """A run in its own process, and the threads that print its output."""

    def __init__(self, name: str, job: tuple[Any, ...], share: Share, memory: dict[str, str], device: str) -> None:
        self.share = share
        threads = str(len(share.cores))
        environment = {**os.environ, **memory, "PYTHONUNBUFFERED": "1"}
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.pop("SLURM_CPUS_PER_TASK", None)  # counts the cores of all runs, where the sweep is a SLURM job
        if share.gpu is not None and ":" not in device:  # device=cuda:1 chooses its own GPU
            environment["CUDA_VISIBLE_DEVICES"] = share.gpu
        with tempfile.TemporaryFile() as file:
            pickle.dump(share.cores, file)
            pickle.dump(job, file)
            file.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from meanq.launching.local import child; child()"],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches the run once, through this process
            )
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._printers = [threading.Thread(target=_print_lines, args=(name, *pair), daemon=True) for pair in streams]
        for printer in self._printers:
            printer.start()

    def stop(self, number: int) -> None:
        """Pass on a signal; a closed terminal (SIGHUP) stops a run as `kill` does."""
        self.process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def exit_code(self) -> int:
        """Wait for the last lines, but not for ever: a process that the run left behind may hold the pipe open."""
        self.process.wait()
        for printer in self._printers:
            printer.join(_LAST_LINES_SECONDS)
        return self.process.returncode


_output_lock = threading.Lock()  # lines of different threads must not mix


def _say(line: str, stream: IO[str] | None = None) -> None:
    with _output_lock:
        print(line, file=stream or sys.stdout, flush=True)


def _print_lines(name: str, source: IO[str], to: IO[str]) -> None:
    for line in source:
        _say(f"{name} | {line.rstrip()}", to)


def available_cores() -> list[int]:
    """Return the cores that this process may use; inside a SLURM job, at most as many as the job has.

    Idle cores come first: runs are bound to their cores, and another sweep may have bound its runs to the others.
    """
    import psutil

    cores = sorted(os.sched_getaffinity(0))
    load = dict(enumerate(psutil.cpu_percent(interval=_CORE_LOAD_SECONDS, percpu=True)))
    cores.sort(key=lambda core: load.get(core, 0.0) > 50)
    return cores[: int(os.environ.get("SLURM_CPUS_PER_TASK") or len(cores))]


def gpus_of(configs: Sequence[Config]) -> list[str]:
    """Return the names of the GPUs that this process may use; empty where all runs are on the CPU."""
    if all(config.device == "cpu" for config in configs):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def describe(code: int) -> str:
    """Explain the exit code of a process."""
    if code < 0:
        hint = "; was memory short?" if -code == signal.SIGKILL else ""
        return f"killed by signal {-code} ({signal.Signals(-code).name}{hint})"
    if code > 128:
        return f"stopped by signal {code - 128}"
    return "finished" if code == 0 else f"failed with exit code {code}"


def child() -> None:
    """Run the job that is pickled on standard input."""
    _stop_with_parent()
    hold_stop_signals()
    outlive_terminal()
    os.sched_setaffinity(0, pickle.load(sys.stdin.buffer))  # before anything counts the cores
    version.setbase("1.3")
    try:
        returned = run_in_this_process(*pickle.load(sys.stdin.buffer))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    if returned.status == JobStatus.FAILED:
        print(returned._return_value, file=sys.stderr)
        sys.exit(1)


def _stop_with_parent() -> None:
    """Receive SIGTERM when the parent process is killed. Only Linux supports this."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
