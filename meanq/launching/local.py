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
from typing import NamedTuple

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.execute import BUSY, CANNOT_WORK, FAILED, Room, Run, RunFailedError, execute
from meanq.launching.overrides import override_key
from meanq.rundir.layout import run_directory
from meanq.training.signals import StopSignals, hold_stop_signals

_POLL_SECONDS = 0.1
_CORE_LOAD_SECONDS = 0.2  # over which the load of the cores is measured
_LAST_LINES_SECONDS = 2.0


class Share(NamedTuple):
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
    own = [[o for o in job if o not in common and override_key(o) != "label"] for job in job_overrides]
    names = [" ".join(overrides) or "run" for overrides in own]
    return [name.ljust(max(map(len, names))) for name in names]


class LocalLauncher:
    """Starts one process per run, as many at once as there are shares."""

    def __init__(self, jobs: int | None, threads: int | None) -> None:
        for name, value in (("jobs", jobs), ("threads", threads)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"hydra.launcher.{name}={value}: write a whole number of 1 or more, or null")
        self._jobs, self._threads = jobs, threads

    def launch(self, runs: Sequence[Run]) -> list[RunFailedError]:
        """Run all; a failure of one does not affect the others. A stop signal is passed on to the runs."""
        shares = self._shares([run.config for run in runs])
        at_once = f"{len(shares)} at once with {len(shares[0].cores)} core(s) each"
        _say(f"{len(runs)} runs, {at_once}; lines begin with the run's name")
        return train_on(runs, shares, len(shares))

    def room(self, configs: Sequence[Config]) -> Room:
        """Return the memory that each of these runs would have now."""
        from meanq.training.machine import available_memory  # imports torch
        from meanq.training.memory import LOCAL_SHARE

        return Room(available_memory() // len(self._shares(configs)), bool(gpus_of(configs)), *LOCAL_SHARE)

    def _shares(self, configs: Sequence[Config]) -> list[Share]:
        threads = max((c.threads for c in configs if c.threads), default=self._threads)
        return divide(available_cores(), gpus_of(configs), len(configs), self._jobs, threads)


def train_on(runs: Sequence[Run], shares: Sequence[Share], places: int) -> list[RunFailedError]:
    """Train each run in its own process, as many at once as there are shares; `places` divide the free memory."""
    from meanq.training.machine import MEMORY_SHARE, available_memory  # imports torch

    # Replays fill up slowly, so the memory that is free when a run starts is not all for that run.
    memory = {MEMORY_SHARE: str(available_memory() // places)}
    waiting, free = list(zip(run_names([run.overrides for run in runs]), runs, strict=True)), list(shares)
    running: list[_Child] = []
    failures = []
    stopping = False
    with StopSignals() as signals:  # leaving it exits as the signal demands
        try:
            while running or (waiting and not stopping):
                while waiting and free and signals.wanted is None:
                    running.append(_Child(*waiting.pop(0), free.pop(0), memory))
                if signals.wanted is not None and not stopping:
                    stopping = True
                    _say(f"stopping {len(running)} run(s), which save first; another Ctrl-C kills them")
                    for child in running:
                        child.stop(signals.wanted)
                for child in [child for child in running if child.process.poll() is not None]:
                    running.remove(child)
                    free.append(child.share)
                    ended, code = describe(child.exit_code()), child.process.returncode
                    if code:
                        code = code if code in (CANNOT_WORK, BUSY) else FAILED
                        failures.append(RunFailedError(f"{child.directory}: {ended}", code))
                    _say(f"{child.name} | {ended}; {len(waiting) + len(running)} run(s) to go")
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:  # the second Ctrl-C
            for child in running:
                child.process.kill()
                child.exit_code()
                _say(f"{child.name} | killed; {len(waiting)} run(s) to go")
            raise
    return failures


class _Child:
    """A run in its own process, and the thread that prints its output."""

    def __init__(self, name: str, run: Run, share: Share, memory: dict[str, str]) -> None:
        self.name, self.share, self.directory = name, share, run_directory(run.config)
        threads = str(len(share.cores))
        environment = {**os.environ, **memory, "PYTHONUNBUFFERED": "1"}
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.pop("SLURM_CPUS_PER_TASK", None)  # counts the cores of all runs, where the sweep is a SLURM job
        if share.gpu is not None and ":" not in run.config.device:  # device=cuda:1 chooses its own GPU
            environment["CUDA_VISIBLE_DEVICES"] = share.gpu
        with tempfile.TemporaryFile() as file:
            pickle.dump((share.cores, run), file)
            file.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from meanq.launching.local import child; child()"],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches the run once, through this process
            )
        self._printer = threading.Thread(target=self._print_lines, daemon=True)
        self._printer.start()

    def _print_lines(self) -> None:
        for line in self.process.stdout or ():
            _say(f"{self.name} | {line.rstrip()}")

    def stop(self, number: int) -> None:
        """Pass on a signal; a closed terminal (SIGHUP) stops a run as `kill` does."""
        self.process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def exit_code(self) -> int:
        """Wait for the last lines, but not for ever: a process that the run left behind may hold the pipe open."""
        self.process.wait()
        self._printer.join(_LAST_LINES_SECONDS)
        return self.process.returncode


_output_lock = threading.Lock()  # lines of different threads must not mix


def _say(line: str) -> None:
    with _output_lock:
        print(line, flush=True)


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
    named, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]  # CUDA skips all after a wrong name


def describe(code: int) -> str:
    """Explain the exit code of a process."""
    if code < 0:
        hint = "; was memory short?" if -code == signal.SIGKILL else ""
        return f"killed by signal {-code} ({signal.Signals(-code).name}{hint})"
    if code > 128:
        return f"stopped by signal {code - 128}"
    return "finished" if code == 0 else f"failed with exit code {code}"


def child() -> None:
    """Train the run that is pickled on standard input."""
    _stop_with_parent()
    hold_stop_signals()
    outlive_terminal()
    cores, run = pickle.load(sys.stdin.buffer)
    os.sched_setaffinity(0, cores)  # before anything counts the cores
    try:
        execute(run)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except RunFailedError as failure:
        sys.exit(failure.code)


def _stop_with_parent() -> None:
    """Receive SIGTERM when the parent process is killed. Only Linux supports this."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
