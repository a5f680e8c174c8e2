"""SLURM's queue: which jobs are in it, which runs they are, and waiting until they end."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.utils import JobStatus
from submitit.core.utils import pickle_load

from meanq.config.errors import ConfigError
from meanq.rundir.files import write_atomically
from meanq.rundir.reader import read_status

# States that a job does not leave by itself. A requeued job passes through some of them for a moment, and a result may
# appear late on a network file system, so such a state must last ENDED_SECONDS before it counts.
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
ENDED_SECONDS = 20.0
_MAX_RESULT_SECONDS = 10.0  # between two looks for result files
_MAX_QUEUE_SECONDS = 30.0  # between two calls of squeue; less at first,
_ENDED_QUEUE_SECONDS = 5.0  # and while a job seems to have ended
_QUEUE_TRIES = 4
_QUEUE_TRY_SECONDS = 5.0


class SlurmJobError(RuntimeError):
    """A job failed, or ended without a result."""


@dataclass(frozen=True)
class Submitted:
    """A submitted job and the directory of its run."""

    job_id: str
    directory: Path


@dataclass(frozen=True)
class QueueEntry:
    """A job as squeue shows it."""

    state: str
    reason: str
    name: str


def queue() -> dict[str, QueueEntry] | None:
    """Return all jobs of this user that SLURM still knows, by id; None if squeue does not answer."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r|%j"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|", 3) for line in answer.stdout.splitlines()]
    return {row[0].strip(): QueueEntry(row[1], row[2], row[3].strip()) for row in rows if len(row) == 4}


def ask_queue(tries: int = _QUEUE_TRIES) -> dict[str, QueueEntry]:
    """Return the queue, with several tries: without it, runs that are already queued would be submitted again."""
    for left in range(tries - 1, -1, -1):
        answer = queue()
        if answer is not None:
            return answer
        if left:
            time.sleep(_QUEUE_TRY_SECONDS)
    raise ConfigError(
        "hydra/launcher=slurm: squeue does not answer, so which runs are queued already is not known; nothing was "
        "submitted, give the same command again later"
    )


def array_of(job_id: str) -> str:
    """Return the id of a job's array."""
    return job_id.partition("_")[0]


def index_file(folder: Path, array: str) -> Path:
    """The file that maps the jobs of an array to run directories."""
    return folder / f"{array}_runs.json"


def remember(folder: Path, submitted: Sequence[Submitted], name: str) -> None:
    """Store which jobs are which runs, so that the same command, given again, finds them."""
    content = {"name": name, "runs": {job.job_id: str(job.directory) for job in submitted}}
    path = index_file(folder, array_of(submitted[0].job_id))
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def already_queued(folder: Path, name: str) -> dict[Path, Submitted]:
    """Return the jobs that earlier commands submitted and that wait or run, by run directory."""
    files = sorted(folder.glob("*_runs.json"))
    found = {}
    jobs = ask_queue() if files else {}
    for path in files:
        for job_id, directory in json.loads(path.read_text())["runs"].items():
            entry = jobs.get(job_id)
            if entry and entry.state not in _ENDED and entry.name == name:
                found[Path(directory)] = Submitted(job_id, Path(directory))
    return found


class Waiting:
    """Waits for jobs by their result files; asks the queue about jobs that have none."""

    def __init__(self, jobs: Sequence[Submitted], result_path: Callable[[str], Path]) -> None:
        self._pending = {job.job_id: job for job in jobs}
        self._result_path = result_path
        self._ended: dict[str, float] = {}  # job -> since when SLURM has reported it as ended
        self._outcomes: dict[str, BaseException | None] = {}
        self._last_line = ""

    def wait(self, ask: Callable[[], Mapping[str, QueueEntry] | None]) -> dict[str, BaseException | None]:
        """Return the failure of each job, or None where it finished."""
        started, asked, answer = time.monotonic(), float("-inf"), None
        while self._pending:
            self._collect_results()
            now = time.monotonic()
            longest = _ENDED_QUEUE_SECONDS if self._ended else _MAX_QUEUE_SECONDS
            if now - asked >= min(longest, 2 + (now - started) / 20):
                answer, asked = ask(), now
                if answer is not None:
                    self._settle_ended(answer)
                self._report(answer)
            if self._pending:
                time.sleep(min(_MAX_RESULT_SECONDS, 1 + (now - started) / 60))
        self._report(answer)
        return self._outcomes

    def _collect_results(self) -> None:
        for job_id in list(self._pending):
            path = self._result_path(job_id)
            if path.exists():
                self._settle(job_id, failure_in(path, self._pending[job_id]))

    def _settle_ended(self, answer: Mapping[str, QueueEntry]) -> None:
        """Settle jobs that ended some time ago and left no result."""
        now = time.monotonic()
        for job_id, job in list(self._pending.items()):
            entry = answer.get(job_id)
            if entry and entry.state not in _ENDED:
                self._ended.pop(job_id, None)
            elif now - self._ended.setdefault(job_id, now) >= ENDED_SECONDS and not _listed(self._result_path(job_id)):
                if read_status(job.directory).get("state") == "finished":  # killed right after the run's end
                    self._settle(job_id, None)
                    continue
                how = f"ended as {entry.state}" if entry else "no longer in the queue"
                log = self._result_path(job_id).parent
                text = f"{job.directory}: job {job_id} left no result ({how}); its log is in {log}; the same command"
                self._settle(job_id, SlurmJobError(f"{text} goes on with the run"))

    def _settle(self, job_id: str, failure: BaseException | None) -> None:
        del self._pending[job_id]
        self._ended.pop(job_id, None)
        self._outcomes[job_id] = failure

    def _report(self, answer: Mapping[str, QueueEntry] | None) -> None:
        """Print a line whenever the numbers change."""
        if answer is None:
            line = "squeue does not answer; waiting for results"
        else:
            states: Counter[str] = Counter()
            for entry in (answer[job_id] for job_id in self._pending if job_id in answer):
                why = f" ({entry.reason})" if entry.state == "PENDING" and entry.reason != "None" else ""
                states[entry.state.lower() + why] += 1
            failed = sum(failure is not None for failure in self._outcomes.values())
            done = [f"{len(self._outcomes) - failed} done", *([f"{failed} failed"] if failed else [])]
            line = ", ".join([*(f"{count} {state}" for state, count in sorted(states.items())), *done])
        if line != self._last_line:
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            self._last_line = line


def _listed(path: Path) -> bool:
    """Like `exists`, but lists the directory, since a network file system may answer `exists` from its cache."""
    return path.parent.is_dir() and path in path.parent.iterdir()


def failure_in(path: Path, job: Submitted) -> BaseException | None:
    """Read a job's result file; None if the run finished."""
    outcome, returned = pickle_load(path)
    if outcome == "error":  # the job failed outside of the run; `returned` is a traceback
        last = returned.strip().splitlines()[-1]
        return SlurmJobError(f"{job.directory}: job {job.job_id} failed ({last}); its log is in {path.parent}")
    failed = returned.status == JobStatus.FAILED
    failure: BaseException | None = returned._return_value if failed else None
    return failure
