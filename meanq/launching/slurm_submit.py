"""Submit jobs to SLURM: the division into job arrays, the script of an array, and the call of sbatch.

All that a job needs is written before sbatch is called, and its logs need no directory of its own: SLURM may start a
job long before sbatch returns. On its node submitit calls the pickled job, handles signals and queues the job again.
"""

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from meanq.launching.execute import BUSY, CANNOT_WORK
from meanq.launching.slurm_job import OUT_OF_TIME, SlurmJob

_DEFAULT_MAX_ARRAY = 1001  # SLURM's

# A job that is preempted while Python starts, before submitit handles signals, would die of the signal and count as
# failed. So it ignores signals until then; SLURM kills it in the end, and queues it again.
_PYTHON = f'sh -c \'trap "" USR2 TERM; exec "$0" "$@"\' {shlex.quote(sys.executable)}'

# - Since SLURM 22.05 srun no longer takes the number of cores from its job: a run would be bound to one core.
# - srun without --unbuffered, which would give the run a terminal and its log a progress bar.
# - The pickle is moved to the name by which submitit looks for it; a job that starts again finds it there.
# - A failed job is queued again, except where that cannot help, or where SLURM is ending it: then it is not RUNNING.
# - Before SLURM kills a job (preemption, requeue, time limit, scancel), its script gets SIGTERM and removes `$mark`.
#   A script that finds it was not told in its last try: the node was lost, or the script was killed. That is a failure.
# - srun is in the background, because bash puts off a trap until a command in the foreground has ended.
_SCRIPT = """
folder={folder}
job={job}
mark="$folder/${{job}}{running}"
export SRUN_CPUS_PER_TASK="${{SLURM_CPUS_PER_TASK:-1}}" SUBMITIT_EXECUTOR=slurm
if [ -e "$folder/{pickle}" ]; then mv "$folder/{pickle}" "$folder/${{job}}_submitted.pkl"; fi

note_failure() {{  # false if no retry is left
    rm -f "$mark"
    echo "$1" >> "$folder/${{job}}{noted}"
    failures=$(wc -l < "$folder/${{job}}{noted}")
    [ "$failures" -le {retries} ] && echo "meanq: $1; retry $failures of {retries}" >&2
}}
if node=$(cat "$mark" 2> /dev/null); then
    note_failure "node lost or job script killed on $node" || exit 1
fi

{setup}

trap 'rm -f "$mark"' TERM EXIT
hostname > "$mark"
srun --output {out} --error {err} {python} -u -m submitit.core._submit {folder} &
while true; do
    code=0
    wait $! || code=$?
    kill -0 $! 2> /dev/null || break
done
case $code in 0|{final}) exit $code ;; esac
if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    note_failure "exit code $code on $(hostname)" && scontrol requeue "$job" && sleep 60
fi
exit $code
"""
RUNNING = "_running"  # suffix of the file that exists while the script of a job runs
FAILURES = "_failures"  # suffix of the file that has a line for each failure of a job


class RefusedError(RuntimeError):
    """What sbatch said when it refused jobs."""


class Array(NamedTuple):
    """A job array: its size, how many of its jobs may run at once, and the array that must have ended before."""

    size: int
    at_once: int
    after: int | None


def split(count: int, most: int, at_once: int) -> list[Array]:
    """Divide jobs into arrays of at most `most`, with at most `at_once` jobs of all arrays running at any time.

    The arrays run side by side, each with its share of `at_once`; those for which none is left follow earlier ones.
    """
    if not count:
        return []
    sizes = divide(count, -(-count // most))
    lanes = divide(at_once, min(len(sizes), at_once))
    return [
        Array(size, lanes[i % len(lanes)], i - len(lanes) if i >= len(lanes) else None) for i, size in enumerate(sizes)
    ]


def divide(count: int, parts: int) -> list[int]:
    """Divide a number into equal parts, or parts that differ by 1."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def max_array_size() -> int:
    """Return how many jobs an array may have on this cluster."""
    try:
        command = ["scontrol", "show", "config"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return _DEFAULT_MAX_ARRAY
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
    return max(1, int(found[1])) if found else _DEFAULT_MAX_ARRAY


def set_throttle(array: str, at_once: int) -> None:
    """Change how many jobs of an array may run at once."""
    command = ["scontrol", "update", f"jobid={array}", f"arraytaskthrottle={at_once}"]
    subprocess.run(command, capture_output=True, timeout=60)


def submit(
    jobs: Sequence[SlurmJob], folder: Path, options: Mapping[str, Any], fields: Mapping[str, Any], at_once: int
) -> list[str]:
    """Submit jobs, as an array if there are several, and return their ids. Raises RefusedError."""
    from submitit.core.utils import DelayedSubmission

    folder.mkdir(parents=True, exist_ok=True)
    batch = secrets.token_hex(8)
    written = [folder / f"{batch}_{index}.pkl" for index in range(len(jobs))]
    text = folder / f"{batch}_submission.sh"
    try:
        for job, path in zip(jobs, written, strict=True):
            delayed = DelayedSubmission(job)
            delayed.set_timeout(fields["timeout_min"], fields["max_num_timeout"])
            delayed.dump(path)
        text.write_text(script(batch, len(jobs), folder, options, fields, at_once))
        number = _sbatch(text)
    except BaseException:
        for path in (*written, text):
            path.unlink(missing_ok=True)
        raise
    text.rename(folder / f"{number}_submission.sh")
    return [f"{number}_{index}" for index in range(len(jobs))] if len(jobs) > 1 else [number]


def script(
    batch: str, count: int, folder: Path, options: Mapping[str, Any], fields: Mapping[str, Any], at_once: int
) -> str:
    """Return the script of a job, or of an array of jobs."""
    pattern = "%A_%a" if count > 1 else "%j"
    logs = {kind: f"{folder}/".replace("%", "%%") + f"{pattern}_0_log.{kind}" for kind in ("out", "err")}
    options = {**options, "output": logs["out"], "error": logs["err"], "open-mode": "append"}
    if count > 1:
        options["array"] = f"0-{count - 1}%{min(count, at_once)}"
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    lines = [_directive(name, value) for name, value in sorted(given.items())]
    body = _SCRIPT.format(
        job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if count > 1 else "$SLURM_JOB_ID",
        pickle=f"{batch}_{'${SLURM_ARRAY_TASK_ID}' if count > 1 else 0}.pkl",
        folder=shlex.quote(str(folder)),
        setup="\n".join(fields["setup"] or []),
        out=shlex.quote(logs["out"]),
        err=shlex.quote(logs["err"]),
        python=_PYTHON,
        final="|".join(map(str, (CANNOT_WORK, BUSY, OUT_OF_TIME))),
        retries=fields["retries"],
        running=RUNNING,
        noted=FAILURES,
    )
    return "\n".join(["#!/bin/bash", *lines, body])


def _directive(name: str, value: Any) -> str:
    return f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}")


def _sbatch(text: Path) -> str:
    """Call sbatch and return the number of the job."""
    # Inside another job, that job's variables would change what sbatch and srun do.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    done = subprocess.run(["sbatch", "--parsable", str(text)], capture_output=True, text=True, env=kept)
    number = re.search(r"^(\d+)(;.*)?$", done.stdout, re.MULTILINE)
    if done.returncode or not number:
        raise RefusedError(done.stderr or done.stdout)
    return number[1]
