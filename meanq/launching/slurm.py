"""hydra/launcher=slurm: each run of a sweep as a job of a SLURM cluster, through submitit.

What hydra-submitit-launcher lacks: it waits for the jobs one by one, for ever where one was killed and the cluster
keeps no accounts, and the first that failed ends the waiting. Given again, it submits jobs that wait already.
"""

import contextlib
import copy
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher as SubmititSlurmLauncher
from omegaconf import OmegaConf

from meanq.config.errors import ConfigError
from meanq.launching.launch import FrozenConfigs, frozen_configs, result
from meanq.rundir.files import read_status, write_atomically
from meanq.training.signals import hold_stop_signals

# States that a job does not leave by itself. One that is queued again passes through some of them for a moment, and a
# result may show late on a network file system: hence the seconds that such a state must last before it counts.
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
_GONE = "no longer in the queue"
ENDED_SECONDS = 20.0
_MAX_LOOK_SECONDS = 10.0  # between two looks for results
_MAX_QUEUE_SECONDS = 30.0  # between two questions to the scheduler; fewer at first,
_ENDED_QUEUE_SECONDS = 5.0  # and where a job seems to have ended
_QUEUE_TRIES = 4  # of asking which runs are queued already, before any is submitted
_QUEUE_TRY_SECONDS = 5.0  # between two of them

# A job that is preempted while Python starts, before submitit listens, would die of the signal and count as failed.
# So it ignores signals until then; SLURM kills it in the end, and queues it again.
_PYTHON = f'sh -c \'trap "" USR2 TERM; exec "$0" "$@"\' {shlex.quote(sys.executable)}'

# Words of sbatch's complaints, the field that they are about, and where to look.
_COMPLAINTS = (
    ("partition", "partition", "`sinfo -s` lists the partitions"),
    ("account", "account", "`sacctmgr show associations user=$USER` lists yours"),
    ("qos", "qos", "`sacctmgr show qos` lists them"),
    ("feature", "constraint", "`sinfo -o '%N %f'` lists what nodes have"),
    ("time limit", "timeout_min", "`sinfo -o '%P %l'` shows the limits"),
    ("gres", "gpus_per_node", "`sinfo -o '%N %G'` shows the GPUs; write 0 for runs that need none"),
    ("memory", "mem_gb", "`sinfo -o '%N %m'` shows what nodes have"),
    ("cpu count", "cpus_per_task", "`sinfo -o '%N %c'` shows what nodes have"),
    ("more processors", "cpus_per_task", "`sinfo -o '%N %c'` shows what nodes have"),
)


class SlurmJobError(RuntimeError):
    """A job ended without a result, or with a failure."""


@dataclass(frozen=True)
class Submitted:
    """A job in the queue, and the run that it is."""

    job_id: str
    directory: Path


class SlurmLauncher(SubmititSlurmLauncher):
    """Submits what is neither finished nor queued, then waits for all."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit and wait. One job that fails or is killed neither ends the waiting nor makes it endless."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "hydra/launcher=slurm: there is no sbatch here; start this on your cluster's login node, "
                "or write hydra/launcher=local"
            )
        frozen = frozen_configs(self.hydra_context)
        directories = [frozen.directory(overrides).absolute() for overrides in job_overrides]
        folder = self._index_folder()
        queued = already_queued(folder, ask_queue(), self.params["name"]) if _arrays_of(folder) else {}
        missing = [i for i, directory in enumerate(directories) if directory not in queued]
        jobs: dict[int, Submitted] = {i: queued[d] for i, d in enumerate(directories) if d in queued}
        if jobs:
            arrays = ", ".join(sorted({job.job_id.split("_")[0] for job in jobs.values()}))
            print(f"{len(jobs)} of {len(job_overrides)} runs are queued or running already, as job {arrays}")
        if missing:
            ids = self._submit([job_overrides[i] for i in missing], frozen)
            jobs |= {i: Submitted(job_id, directories[i]) for i, job_id in zip(missing, ids, strict=True)}
            submitted = [jobs[i] for i in missing]
            remember(folder, submitted, self.params["name"])
            self._announce(submitted)
        waiting = Waiting(list(jobs.values()), self._result_path)
        try:
            outcomes = waiting.wait(queue)
        except KeyboardInterrupt:
            left = " ".join(sorted({job.job_id.split("_")[0] for job in jobs.values()}))
            print(
                f"\nLeft; the jobs go on. Give the same command again to wait for them; to cancel: scancel {left}",
                flush=True,
            )
            raise SystemExit(130) from None
        return [result(overrides, outcomes[jobs[i].job_id]) for i, overrides in enumerate(job_overrides)]

    def __call__(self, *arguments: Any, **named: Any) -> JobReturn:
        """What a job does."""
        hold_stop_signals()
        return super().__call__(*arguments, **named)

    def _submit(self, job_overrides: Sequence[Sequence[str]], frozen: FrozenConfigs) -> list[str]:
        """The ids of their jobs: an array where there are several."""
        import submitit

        assert self.hydra_context is not None and self.config is not None
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        folder = self._index_folder()
        first = not folder.exists()
        try:
            executor = submitit.AutoExecutor(
                cluster="slurm",
                folder=self.params["submitit_folder"],
                slurm_max_num_timeout=self.params["max_num_timeout"],
                slurm_python=_PYTHON,
            )
            executor.update_parameters(**self._executor_parameters())
            jobs = []
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what sbatch says, and so do we
                with executor.batch():
                    for number, overrides in enumerate(job_overrides):
                        arguments = (list(overrides), "hydra.sweep.dir", number, str(number), Singleton.get_state())
                        jobs.append(executor.submit(self._only(overrides, frozen), *arguments))
                return [str(job.job_id) for job in jobs]
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            if first:
                shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(explain_rejection(str(error), self.params)) from None

    def _only(self, overrides: Sequence[str], frozen: FrozenConfigs) -> "SlurmLauncher":
        """What one job needs of this launcher: a sweep of many runs is not stored in each of its jobs."""
        assert self.hydra_context is not None
        launcher = copy.copy(self)
        launcher.hydra_context = HydraContext(
            config_loader=frozen.only(overrides),  # type: ignore[arg-type]
            callbacks=self.hydra_context.callbacks,
        )
        return launcher

    def _executor_parameters(self) -> dict[str, Any]:
        """As submitit wants them: those of SLURM alone with a prefix."""
        shared = set(OmegaConf.structured(BaseQueueConf).keys())
        parameters = {
            key if key in shared else f"slurm_{key}": value
            for key, value in self.params.items()
            if key not in ("submitit_folder", "max_num_timeout")
        }
        # Since SLURM 22.05 srun no longer takes the number of cores from its job: a run would be bound to one core.
        cores = 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"'
        parameters["slurm_setup"] = [cores, *(parameters.get("slurm_setup") or [])]
        return parameters

    def _index_folder(self) -> Path:
        from submitit.core.utils import JobPaths

        return JobPaths.get_first_id_independent_folder(self.params["submitit_folder"])

    def _paths(self, job_id: str) -> Any:
        from submitit.core.utils import JobPaths

        return JobPaths(self.params["submitit_folder"], job_id=job_id)

    def _result_path(self, job_id: str) -> Path:
        path: Path = self._paths(job_id).result_pickle
        return path

    def _announce(self, submitted: Sequence[Submitted]) -> None:
        array = submitted[0].job_id.split("_")[0]
        several = len(submitted) > 1
        what = f"job array {array}, at most {self.params['array_parallelism']} at once" if several else f"job {array}"
        log = str(self._paths(f"{array}_*" if several else array).stdout).replace("_0_log.out", "_0_log.*")
        print(
            f"Submitted {len(submitted)} run(s) as SLURM {what}\n"
            f"  which is which   {index_file(self._index_folder(), array)}\n"
            f"  logs             {log}\n"
            f"  queue            squeue --jobs {array}\n"
            f"  cancel           scancel {array}"
            + (f", or one run: scancel {submitted[-1].job_id}" if several else ""),
            "\nThis command now waits. Ctrl-C leaves the jobs running; the same command given again waits for them.",
            sep="",
            flush=True,
        )


@dataclass(frozen=True)
class QueueEntry:
    """What squeue says of a job."""

    state: str
    reason: str
    name: str


def queue() -> dict[str, QueueEntry] | None:
    """All jobs of this user that SLURM still knows, by id; None where it does not answer."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r|%j"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split("|", 3) for line in answer.stdout.splitlines()]
    return {row[0].strip(): QueueEntry(row[1], row[2], row[3].strip()) for row in rows if len(row) == 4}


def index_file(folder: Path, array: str) -> Path:
    """Says which job of an array is which run."""
    return folder / f"{array}_runs.json"


def remember(folder: Path, submitted: Sequence[Submitted], name: str) -> None:
    """So that the same command, given again, finds these jobs."""
    content = {"name": name, "runs": {job.job_id: str(job.directory) for job in submitted}}
    array = submitted[0].job_id.split("_")[0]
    write_atomically(index_file(folder, array), (json.dumps(content, indent=2) + "\n").encode())


def _arrays_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*_runs.json"))


def ask_queue(tries: int = _QUEUE_TRIES) -> dict[str, QueueEntry]:
    """The queue, after some patience: not to know it would be to submit again what waits there."""
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


def already_queued(folder: Path, jobs: Mapping[str, QueueEntry], name: str) -> dict[Path, Submitted]:
    """Runs whose jobs wait or run, by directory."""
    found = {}
    for path in _arrays_of(folder):
        for job_id, directory in json.loads(path.read_text())["runs"].items():
            entry = jobs.get(job_id)
            if entry and entry.state not in _ENDED and entry.name == name:
                found[Path(directory)] = Submitted(job_id, Path(directory))
    return found


class Waiting:
    """Waits for jobs by their result files, and asks the queue for those that have none."""

    def __init__(self, jobs: Sequence[Submitted], result_path: Callable[[str], Path]) -> None:
        self._pending = {job.job_id: job for job in jobs}
        self._result_path = result_path
        self._ended: dict[str, float] = {}  # since when SLURM has said that it ended
        self._outcomes: dict[str, BaseException | None] = {}
        self._said = ""

    def wait(self, ask: Callable[[], Mapping[str, QueueEntry] | None]) -> dict[str, BaseException | None]:
        """By job: what it failed of, or None."""
        started, asked, answer = time.monotonic(), float("-inf"), None
        while self._pending:
            self._collect()
            now = time.monotonic()
            patience = _ENDED_QUEUE_SECONDS if self._ended else _MAX_QUEUE_SECONDS
            if now - asked >= min(patience, 2 + (now - started) / 20):
                answer, asked = ask(), now
                if answer is not None:
                    self._judge(answer)
                self._report(answer)
            if self._pending:
                time.sleep(min(_MAX_LOOK_SECONDS, 1 + (now - started) / 60))
        self._report(answer)
        return self._outcomes

    def _collect(self) -> None:
        for job_id in list(self._pending):
            path = self._result_path(job_id)
            if path.exists():
                self._settle(job_id, failure_in(path, self._pending[job_id]))

    def _judge(self, answer: Mapping[str, QueueEntry]) -> None:
        now = time.monotonic()
        for job_id, job in list(self._pending.items()):
            entry = answer.get(job_id)
            if entry and entry.state not in _ENDED:
                self._ended.pop(job_id, None)
            elif now - self._ended.setdefault(job_id, now) >= ENDED_SECONDS and not _listed(self._result_path(job_id)):
                if read_status(job.directory).get("state") == "finished":  # killed a moment after its end
                    self._settle(job_id, None)
                    continue
                how = f"ended as {entry.state}" if entry else _GONE
                log = self._result_path(job_id).parent
                text = f"{job.directory}: job {job_id} left no result ({how}); its log is in {log}; the same command"
                self._settle(job_id, SlurmJobError(f"{text} goes on with the run"))

    def _settle(self, job_id: str, failure: BaseException | None) -> None:
        del self._pending[job_id]
        self._ended.pop(job_id, None)
        self._outcomes[job_id] = failure

    def _report(self, answer: Mapping[str, QueueEntry] | None) -> None:
        """One line whenever the numbers change."""
        if answer is None:
            line = "squeue does not answer; waiting for results"
        else:
            entries = [answer[job_id] for job_id in self._pending if job_id in answer]
            states = Counter(
                entry.state.lower()
                + (f" ({entry.reason})" if entry.state == "PENDING" and entry.reason != "None" else "")
                for entry in entries
            )
            failed = sum(failure is not None for failure in self._outcomes.values())
            done = [f"{len(self._outcomes) - failed} done", *([f"{failed} failed"] if failed else [])]
            line = ", ".join([*(f"{count} {state}" for state, count in sorted(states.items())), *done])
        if line != self._said:
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            self._said = line


def _listed(path: Path) -> bool:
    """Like `exists`, but a network file system cannot answer from what it remembers."""
    return path.parent.is_dir() and path in path.parent.iterdir()


def failure_in(path: Path, job: Submitted) -> BaseException | None:
    """What a job's result file says: None where the run finished."""
    from submitit.core.utils import pickle_load

    outcome, returned = pickle_load(path)
    if outcome == "error":  # the job failed outside of the run; this is its traceback
        last = returned.strip().splitlines()[-1]
        return SlurmJobError(f"{job.directory}: job {job.job_id} failed ({last}); its log is in {path.parent}")
    if returned.status == JobStatus.FAILED:
        failure: BaseException = returned._return_value
        return failure
    return None


def explain_rejection(text: str, params: Mapping[str, Any]) -> str:
    """What sbatch said, with the field that it is about."""
    said = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    reason = said[-1].removeprefix("Batch job submission failed: ") if said else "sbatch gave no reason"
    for word, name, where in _COMPLAINTS:
        if word in text.lower():
            return f"hydra.launcher.{name}={params.get(name)}: SLURM refused the jobs ({reason}); {where}"
    asked = ", ".join(f"{key}={params.get(key)}" for key in ("gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min"))
    return f"hydra/launcher=slurm: SLURM refused the jobs ({reason}); asked for {asked}"
