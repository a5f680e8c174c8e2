"""SLURM's queue: which runs wait or train in jobs, and waiting until their jobs have ended. Needs no accounting."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from meanq.config.errors import ConfigError
from meanq.launching.execute import BUSY, FAILED, RunFailedError
from meanq.launching.slurm_submit import FAILURES, RUNNING
from meanq.rundir.lock import lock_holder
from meanq.rundir.reader import read_status

# States that a job does not leave by itself. A requeued job passes through some of them for a moment, and status.json
# may appear late on a network file system, so such a state must last ENDED_SECONDS before it counts.
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
_FAILED = {"BOOT_FAIL", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
ENDED_SECONDS = 20.0
_MAX_POLL_SECONDS = 30.0  # between two calls of squeue; less at first,
_ENDED_POLL_SECONDS = 5.0  # and while a job seems to have ended

Queue = Mapping[str, tuple[str, str]]  # job -> state and reason
Jobs = dict[Path, str]  # run directory -> job; several runs may share a job


def queue(users: Iterable[int] = ()) -> Queue | None:
    """Return all jobs of this user and of `users` that SLURM still knows, by id; None if squeue does not answer."""
    whose = ",".join(map(str, sorted({os.getuid(), *users})))
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={whose}", "--format=%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|") for line in answer.stdout.splitlines()]
    return {row[0].strip(): (row[1], row[2].strip()) for row in rows if len(row) == 3}


def owners(folder: Path) -> set[int]:
    """Return the users who have submitted jobs of this study."""
    return {path.stat().st_uid for path in folder.glob("*_runs.json")}


def already_queued(folder: Path) -> Jobs:
    """Return the jobs that earlier commands submitted, other users' too, and that wait or run."""
    files = sorted(folder.glob("*_runs.json"))
    answer = queue(owners(folder)) if files else {}
    if answer is None:
        raise ConfigError(
            "hydra/launcher=slurm: squeue does not answer, so which runs are queued already is not known; nothing was "
            "submitted, give the same command again later"
        )
    found: Jobs = {}
    for path in files:
        try:
            noted = json.loads(path.read_text())["runs"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            remedy = f"remove it if squeue shows no job {path.name.partition('_')[0]}"
            raise ConfigError(f"{path} cannot be read, so which runs are queued is not known; {remedy}") from None
        for job, directories in noted:
            if answer.get(job, ("COMPLETED", ""))[0] not in _ENDED:  # earlier versions noted one directory, no list
                of_job = [directories] if isinstance(directories, str) else directories
                found |= {Path(directory): job for directory in of_job}
    return found


def no_more(active: int) -> tuple[Jobs, int]:
    """All runs are submitted."""
    return {}, 0


def wait(
    jobs: Jobs, folder: Path, submit_more: Callable[[int], tuple[Jobs, int]] = no_more, retries: int = 0
) -> list[RunFailedError]:
    """Wait until every run is finished or its job has ended; return how the jobs of unfinished runs ended.

    `submit_more` takes the number of jobs that have not ended; it returns new jobs and how many runs still have none.
    A job whose script was killed is queued again up to `retries` times. Prints a line whenever the numbers change.
    """
    pending, failures, done = dict(jobs), list[RunFailedError](), 0
    ended: dict[str, float] = {}  # job -> since when SLURM has reported it as ended
    started, last_line = time.monotonic(), ""
    while True:
        answer, now = queue(owners(folder)), time.monotonic()
        for directory, job in list(pending.items()):
            state = answer.get(job, ("", ""))[0] if answer is not None else "UNKNOWN"
            if read_status(directory).get("state") == "finished":
                del pending[directory]
                done += 1
            elif state and state not in _ENDED:
                ended.pop(job, None)
            elif now - ended.setdefault(job, now) >= ENDED_SECONDS:
                if state in _FAILED and _queue_again(job, folder, retries):
                    ended[job] = now
                    continue
                del pending[directory]
                failures.append(_failure(directory, job, state, folder))
        new, without_job = submit_more(len(set(pending.values())))
        pending |= new
        line = _summary(answer, pending.values(), without_job, done, len(failures))
        if line != last_line:
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            last_line = line
        if not pending and not without_job:
            return failures
        longest = _ENDED_POLL_SECONDS if ended.keys() & set(pending.values()) else _MAX_POLL_SECONDS
        time.sleep(min(longest, 2 + (now - started) / 20))


def _queue_again(job: str, folder: Path, retries: int) -> bool:
    """Queue a job again if its script was killed, so that it could not do so itself, and if a retry is left."""
    mark, failures = folder / f"{job}{RUNNING}", folder / f"{job}{FAILURES}"
    try:
        node = mark.read_text().strip()
    except OSError:
        return False
    mark.unlink()
    with failures.open("a") as file:
        file.write(f"job script killed on {node}\n")
    if len(failures.read_text().splitlines()) > retries:
        return False
    return subprocess.run(["scontrol", "requeue", job], capture_output=True, timeout=60).returncode == 0


def _failure(directory: Path, job: str, state: str, folder: Path) -> RunFailedError:
    if holder := lock_holder(directory):
        return RunFailedError(f"{directory}: is being trained by {named(holder)}, not by job {job}", BUSY)
    how = f"ended as {state}" if state else "no longer in the queue"
    tries = folder / f"{job}{FAILURES}"  # a line for each
    count = len(tries.read_text().splitlines()) if tries.exists() else 0
    how += f", failed {count} times" if count > 1 else ""
    text = f"{directory}: job {job} left the run unfinished ({how}); its logs are {folder / job}*"
    return RunFailedError(text, FAILED)


def named(holder: Mapping[str, object]) -> str:
    """Name the process that holds a lock."""
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"


def _summary(answer: Queue | None, pending: Iterable[str], without_job: int, done: int, failed: int) -> str:
    if answer is None:
        return "squeue does not answer; waiting for results"
    states: Counter[str] = Counter()
    for state, reason in (answer[job] for job in pending if job in answer):
        states[state.lower() + (f" ({reason})" if state == "PENDING" and reason != "None" else "")] += 1
    counts = [f"{count} {state}" for state, count in sorted(states.items())]
    counts += [f"{without_job} not submitted yet"] if without_job else []
    return ", ".join([*counts, f"{done} done", *([f"{failed} failed"] if failed else [])])
