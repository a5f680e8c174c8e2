"""hydra/launcher=slurm: each run of a sweep as a job of a SLURM cluster, through submitit.

One killed or failed job does not end the waiting for the others or make it endless, no accounting database is needed,
and jobs that are already queued are not submitted again.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError, JobPaths

from meanq.config.errors import ConfigError
from meanq.launching.execute import Run, RunFailedError, execute
from meanq.rundir.files import write_json
from meanq.rundir.layout import run_directory
from meanq.rundir.reader import read_status
from meanq.training.signals import hold_stop_signals

# A job that is preempted while Python starts, before submitit handles signals, would die of the signal and count as
# failed. So it ignores signals until then; SLURM kills it in the end, and queues it again.
_PYTHON = f'sh -c \'trap "" USR2 TERM; exec "$0" "$@"\' {shlex.quote(sys.executable)}'

# Since SLURM 22.05 srun no longer takes the number of cores from its job: a run would be bound to one core.
_SETUP = 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"'

# Fields that submitit has for every kind of cluster; the others it takes with the prefix slurm_.
_SHARED = {
    *("name", "timeout_min", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "stderr_to_stdout")
}

# Words in messages of sbatch, the field that they are about, and where to look.
_COMPLAINTS = (
    ("partition", "partition", "`sinfo -s` lists the partitions"),
    ("account", "account", "`sacctmgr show associations user=$USER` lists yours"),
    ("qos", "qos", "`sacctmgr show qos` lists them"),
    ("feature", "constraint", "`sinfo -o '%N %f'` lists what nodes have"),
    ("time limit", "timeout_min", "`sinfo -o '%P %l'` shows the limits"),
    ("gres", "gpus_per_node", "`sinfo -o '%N %G'` shows the GPUs; write 0 for runs that need none"),
    ("memory", "mem_gb", "`sinfo -o '%N %m'` shows what nodes have"),
    ("processors", "cpus_per_task", "`sinfo -o '%N %c'` shows what nodes have"),
)

# States that a job does not leave by itself. A requeued job passes through some of them for a moment, and status.json
# may appear late on a network file system, so such a state must last ENDED_SECONDS before it counts.
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
ENDED_SECONDS = 20.0
_MAX_POLL_SECONDS = 30.0  # between two calls of squeue; less at first,
_ENDED_POLL_SECONDS = 5.0  # and while a job seems to have ended

Queue = Mapping[str, tuple[str, str]]  # job -> state and reason


class SlurmJob:
    """What is pickled for one job and called on the cluster."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self) -> None:
        hold_stop_signals()
        execute(self.run)

    def checkpoint(self) -> DelayedSubmission:
        """Tell submitit what to queue again after a time limit or preemption: the same, which resumes the run."""
        return DelayedSubmission(self)


class SlurmLauncher:
    """Submits the runs that are neither finished nor queued, then waits for all."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._folder = JobPaths.get_first_id_independent_folder(fields["submitit_folder"])

    def launch(self, runs: Sequence[Run]) -> list[RunFailedError]:
        """Submit the jobs, wait for them, and return the failures."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "hydra/launcher=slurm: there is no sbatch here; start this on your cluster's login node, "
                "or write hydra/launcher=local"
            )
        by_directory = {run_directory(run.config).absolute(): run for run in runs}
        jobs = {directory: job for directory, job in already_queued(self._folder).items() if directory in by_directory}
        if jobs:
            print(f"{len(jobs)} of {len(runs)} runs are queued or running already, as job {', '.join(_arrays(jobs))}")
        missing = [directory for directory in by_directory if directory not in jobs]
        if missing:
            ids = self._submit([by_directory[directory] for directory in missing])
            content = {"runs": {job: str(directory) for job, directory in zip(ids, missing, strict=True)}}
            write_json(self._folder / f"{_array(ids[0])}_runs.json", content)
            self._announce(ids)
            jobs |= dict(zip(missing, ids, strict=True))
        try:
            failures = wait(jobs)
        except KeyboardInterrupt:
            again = "Give the same command again to wait for them; to cancel: scancel"
            print(f"\nLeft; the jobs go on. {again} {' '.join(_arrays(jobs))}", flush=True)
            raise SystemExit(130) from None
        return [RunFailedError(f"{text}; its log is in {self._folder}") for text in failures]

    def _submit(self, runs: Sequence[Run]) -> list[str]:
        """Submit jobs, as an array if there are several, and return their ids."""
        fields = dict(self._fields)
        folder, max_num_timeout = fields.pop("submitit_folder"), fields.pop("max_num_timeout")
        fields["setup"] = [_SETUP, *(fields["setup"] or [])]
        before = set(self._folder.glob("*.pkl"))
        try:
            executor = AutoExecutor(
                folder, cluster="slurm", slurm_max_num_timeout=max_num_timeout, slurm_python=_PYTHON
            )
            executor.update_parameters(
                **{name if name in _SHARED else f"slurm_{name}": value for name, value in fields.items()}
            )
            # submitit prints sbatch's message, which we explain below
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():
                jobs = [executor.submit(SlurmJob(run)) for run in runs]
        except (FailedJobError, FailedSubmissionError) as error:
            for path in set(self._folder.glob("*.pkl")) - before:  # of jobs that do not exist
                path.unlink()
            raise ConfigError(explain_rejection(str(error), self._fields)) from None
        return [str(job.job_id) for job in jobs]

    def _announce(self, ids: Sequence[str]) -> None:
        array = _array(ids[0])
        what, one = f"job {array}", ""
        if len(ids) > 1:
            what = f"job array {array}, at most {self._fields['array_parallelism']} at once"
            one = f", or one run: scancel {ids[-1]}"
        print(
            f"Submitted {len(ids)} run(s) as SLURM {what}\n"
            f"  which is which   {self._folder / array}_runs.json\n"
            f"  logs             {self._folder / array}*/*_log.*\n"
            f"  queue            squeue --jobs {array}\n"
            f"  cancel           scancel {array}{one}\n"
            "This command now waits. Ctrl-C leaves the jobs running; the same command given again waits for them.",
            flush=True,
        )


def _array(job: str) -> str:
    return job.partition("_")[0]


def _arrays(jobs: Mapping[Path, str]) -> list[str]:
    return sorted({_array(job) for job in jobs.values()})


def explain_rejection(text: str, fields: Mapping[str, Any]) -> str:
    """Name the field that a message of sbatch is about."""
    said = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    reason = said[-1].removeprefix("Batch job submission failed: ") if said else "sbatch gave no reason"
    for word, name, where in _COMPLAINTS:
        if word in text.lower():
            return f"hydra.launcher.{name}={fields.get(name)}: SLURM refused the jobs ({reason}); {where}"
    asked = ", ".join(f"{key}={fields.get(key)}" for key in ("gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min"))
    return f"hydra/launcher=slurm: SLURM refused the jobs ({reason}); asked for {asked}"


def queue() -> Queue | None:
    """Return all jobs of this user that SLURM still knows, by id; None if squeue does not answer."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|") for line in answer.stdout.splitlines()]
    return {row[0].strip(): (row[1], row[2].strip()) for row in rows if len(row) == 3}


def already_queued(folder: Path) -> dict[Path, str]:
    """Return the jobs that earlier commands submitted and that wait or run, by run directory."""
    files = sorted(folder.glob("*_runs.json"))
    answer = queue() if files else {}
    if answer is None:
        raise ConfigError(
            "hydra/launcher=slurm: squeue does not answer, so which runs are queued already is not known; nothing was "
            "submitted, give the same command again later"
        )
    found = {}
    for path in files:
        for job, directory in json.loads(path.read_text())["runs"].items():
            if answer.get(job, ("COMPLETED", ""))[0] not in _ENDED:
                found[Path(directory)] = job
    return found


def wait(jobs: Mapping[Path, str]) -> list[str]:
    """Wait until every run is finished or its job has ended; say of each unfinished run how its job ended.

    Prints a line whenever the numbers change.
    """
    pending, failures = dict(jobs), list[str]()
    ended: dict[str, float] = {}  # job -> since when SLURM has reported it as ended
    started, last_line = time.monotonic(), ""
    while True:
        answer, now = queue(), time.monotonic()
        for directory, job in list(pending.items()):
            state = answer.get(job, ("", ""))[0] if answer is not None else "UNKNOWN"
            if read_status(directory).get("state") == "finished":
                del pending[directory]
            elif state and state not in _ENDED:
                ended.pop(job, None)
            elif now - ended.setdefault(job, now) >= ENDED_SECONDS:
                del pending[directory]
                how = f"ended as {state}" if state else "no longer in the queue"
                failures.append(f"{directory}: job {job} left the run unfinished ({how})")
        line = _summary(answer, pending.values(), len(jobs) - len(pending) - len(failures), len(failures))
        if line != last_line:
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            last_line = line
        if not pending:
            return failures
        longest = _ENDED_POLL_SECONDS if ended.keys() & set(pending.values()) else _MAX_POLL_SECONDS
        time.sleep(min(longest, 2 + (now - started) / 20))


def _summary(answer: Queue | None, pending: Iterable[str], done: int, failed: int) -> str:
    if answer is None:
        return "squeue does not answer; waiting for results"
    states: Counter[str] = Counter()
    for state, reason in (answer[job] for job in pending if job in answer):
        states[state.lower() + (f" ({reason})" if state == "PENDING" and reason != "None" else "")] += 1
    counts = [f"{count} {state}" for state, count in sorted(states.items())]
    return ", ".join([*counts, f"{done} done", *([f"{failed} failed"] if failed else [])])
