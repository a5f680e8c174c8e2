"""hydra/launcher=slurm: the runs of a sweep as jobs of a SLURM cluster, one run or several per job.

Jobs that are already queued are not submitted again. One killed or failed job does not end the waiting for the others
or make it endless. No accounting database is needed.
"""

import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.launching.execute import BUSY, LeftError, Room, Run, RunFailedError
from meanq.launching.slurm_job import SlurmJob
from meanq.launching.slurm_queue import Jobs, already_queued, named, wait
from meanq.launching.slurm_refusal import explain_rejection, is_submit_limit
from meanq.launching.slurm_submit import RefusedError, divide, max_array_size, set_throttle, split, submit
from meanq.rundir.files import write_json
from meanq.rundir.layout import run_directory
from meanq.rundir.lock import lock_holder
from meanq.rundir.reader import read_status

# Whole numbers and the smallest that makes sense.
_WHOLE = {"timeout_min": 1, "array_parallelism": 1, "runs_per_job": 1, "retries": 0, "max_num_timeout": 0}
_WHOLE |= {"signal_delay_s": 0, "cpus_per_task": 1}
# Fields that are no options of sbatch, and those whose option has another name. All others have the option's name.
_OURS = {"submitit_folder", "array_parallelism", "runs_per_job", "retries", "max_num_timeout", "wait", "setup"}
_OPTIONS = {"name": "job-name", "timeout_min": "time", "tasks_per_node": "ntasks-per-node"}


class SlurmLauncher:
    """Submits the runs that are neither finished nor queued, then waits for all."""

    def __init__(self, **fields: Any) -> None:
        check_fields(fields)
        self._fields = fields
        # Earlier versions had a directory per job, .submitit/%j.
        self._folder = Path(fields["submitit_folder"].removesuffix("/%j")).expanduser().absolute()
        self._waiting: list[list[Run]] = []  # runs that have no job yet, grouped by job
        self._full_at = 0  # how many jobs there were when SLURM accepted no more
        self._refusal = ""  # what sbatch said then
        self._submitted = False
        self._most = 1  # jobs in an array

    def launch(self, runs: Sequence[Run]) -> list[RunFailedError]:
        """Submit the jobs, wait for them, and return the failures."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "hydra/launcher=slurm: there is no sbatch here; start this on your cluster's login node, "
                "or write hydra/launcher=local"
            )
        self._check_threads(runs)
        by_directory = {run_directory(run.config).absolute(): run for run in runs}
        jobs = {directory: job for directory, job in already_queued(self._folder).items() if directory in by_directory}
        if jobs:
            print(f"{len(jobs)} of {len(runs)} runs are queued or running already, as job {', '.join(_arrays(jobs))}")
        others = {path: holder for path in by_directory if path not in jobs and (holder := lock_holder(path))}
        missing = [run for path, run in by_directory.items() if path not in jobs and path not in others]
        places = self._fields["runs_per_job"]
        self._waiting = [missing[i : i + places] for i in range(0, len(missing), places)]
        self._most = max_array_size()
        new = self._submit_all(jobs)
        self._announce(new)
        jobs |= new
        if not self._fields["wait"] and jobs:
            print("This command does not wait (hydra.launcher.wait=false); given again, it reports.", flush=True)
            raise LeftError(0 if new and not self._waiting else BUSY)
        try:
            failures = wait(jobs, self._folder, self._submit_more, self._fields["retries"])
        except KeyboardInterrupt:
            again = "Give the same command again to wait for them; to cancel: scancel"
            print(f"\nLeft; the jobs go on. {again} {' '.join(_arrays(jobs))}", flush=True)
            raise SystemExit(130) from None
        return failures + [
            RunFailedError(f"{directory}: is being trained by {named(holder)}", BUSY)
            for directory, holder in others.items()
            if read_status(directory).get("state") != "finished"
        ]

    def room(self, configs: Sequence[Config]) -> Room | None:
        """Return the memory that each run of a job has; None where the cluster decides."""
        memory, places = self._fields["mem_gb"], self._fields["runs_per_job"]
        if memory is None or {"mem", "mem-per-cpu", "mem_per_cpu"} & set(self._fields["additional_parameters"] or {}):
            return None
        gpu = bool(self._fields["gpus_per_node"]) or "gpu" in str(self._fields["gres"])
        whose = " for each run of a job" if places > 1 else " in a job"
        return Room(int(memory * 2**30) // places, gpu, whose, f", or more than hydra.launcher.mem_gb={memory}")

    def _check_threads(self, runs: Sequence[Run]) -> None:
        places, cores = self._fields["runs_per_job"], self._fields["cpus_per_task"]
        threads = max(run.config.threads or 1 for run in runs)
        if places > 1 and places * threads > (cores or 1):
            each = f"{places} runs of {threads} thread(s) each share a job"
            raise ConfigError(f"hydra.launcher.cpus_per_task={cores}: {each}; write {places * threads} or more")

    def _submit_all(self, queued: Jobs) -> Jobs:
        """Submit as many of the waiting runs as SLURM accepts, in as many arrays as needed.

        Jobs that are queued already count for `array_parallelism`, too; if they use it up, new ones follow them.
        """
        found: Jobs = {}
        limit, active, ids = self._fields["array_parallelism"], len(set(queued.values())), list[str]()
        free, follow = (limit - active, "") if active < limit else (limit, ":".join(_arrays(queued)))
        for array in split(len(self._waiting), self._most, free):
            after = follow if array.after is None else ids[array.after]
            new = self._submit_some(array.size, array.at_once, active + len(found), after)
            found |= new
            ids += _arrays(new)
            if len(set(new.values())) < array.size:
                self._full_at = active + len(set(found.values()))
                break
        if self._waiting and 0 < len(ids) < free:  # arrays that SLURM did not accept need no share
            for number, at_once in zip(ids, divide(free, len(ids)), strict=True):
                set_throttle(number, at_once)
        return found

    def _submit_more(self, active: int) -> tuple[Jobs, int]:
        """Once jobs have ended, submit those that SLURM refused before, up to `array_parallelism` jobs in all."""
        found: Jobs = {}
        places = min(self._fields["array_parallelism"] - active, len(self._waiting), self._most)
        if places > 0 and (active < self._full_at or not active):
            found = self._submit_some(places, places, active)
            self._full_at = active + len(set(found.values()))
        return found, sum(map(len, self._waiting))

    def _submit_some(self, count: int, at_once: int, active: int, after: str = "") -> Jobs:
        """Submit an array of `count` of the waiting jobs, or of half as many until SLURM accepts it.

        A refusal ends the command, unless there are jobs for whose end it can wait.
        """
        options = sbatch_options(self._fields)
        needed = [options.get("dependency"), f"afterany:{after}" if after else None]
        options["dependency"] = ",".join(filter(None, needed)) or None
        while count:
            groups = self._waiting[:count]
            jobs = [SlurmJob(group, self._fields["runs_per_job"]) for group in groups]
            try:
                with _uninterrupted():  # a job that exists is always noted
                    ids = submit(jobs, self._folder, options, self._fields, at_once)
                    directories = [[str(run_directory(run.config).absolute()) for run in group] for group in groups]
                    noted = dict(zip(ids, directories, strict=True))
                    write_json(self._folder / f"{_array(ids[0])}_runs.json", {"runs": noted})
            except RefusedError as error:
                self._refusal, limit = str(error), is_submit_limit(str(error))
                can_wait = active or self._submitted if limit else active and self._submitted
                if not can_wait and not (limit and count > 1):
                    raise ConfigError(explain_rejection(self._refusal, self._fields)) from None
                count = count // 2 if limit else 0
            except OSError as error:
                raise ConfigError(f"root: cannot write to {self._folder} ({error.strerror})") from None
            else:
                self._submitted = True
                del self._waiting[:count]
                return {Path(path): job for job, paths in noted.items() for path in paths}
        return {}

    def _announce(self, jobs: Jobs) -> None:
        """Say what was submitted and what was not."""
        arrays, ids, limit = _arrays(jobs), list(dict.fromkeys(jobs.values())), self._fields["array_parallelism"]
        if jobs:
            kind = "job array" if len(ids) > 1 else "job"
            packed = f" in {len(ids)} jobs" if len(ids) < len(jobs) else ""
            files = f"{self._folder}/" + (arrays[0] if len(arrays) == 1 else f"{{{','.join(arrays)}}}")
            print(
                f"Submitted {len(jobs)} run(s){packed} as SLURM {kind}{'s' * (len(arrays) > 1)} {', '.join(arrays)}"
                f"{f', at most {limit} at once' if len(ids) > 1 else ''}\n"
                f"  which is which   {files}_runs.json\n"
                f"  logs             {files}_*_log.*\n"
                f"  queue            squeue --jobs {','.join(arrays)}\n"
                f"  cancel           scancel {' '.join(arrays)}{f', or one job: scancel {ids[-1]}' * (len(ids) > 1)}"
            )
        if left := sum(map(len, self._waiting)):
            print(f"Not submitted: {left} run(s), until jobs end. {explain_rejection(self._refusal, self._fields)}")
        if jobs and self._fields["wait"]:
            again = "Ctrl-C leaves the jobs running; the same command given again waits for them."
            print(f"This command now waits. {again}", flush=True)


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that cannot work."""
    for name, least in _WHOLE.items():
        value = fields[name]
        if (type(value) is not int or value < least) and not (name == "cpus_per_task" and value is None):
            raise ConfigError(f"hydra.launcher.{name}={value}: write a whole number of {least} or more")
    minutes, delay, memory = fields["timeout_min"], fields["signal_delay_s"], fields["mem_gb"]
    if delay >= minutes * 60:
        text = f"a run would be stopped as soon as it starts, since timeout_min={minutes}"
        raise ConfigError(f"hydra.launcher.signal_delay_s={delay}: {text}; write less than {minutes * 60}")
    if memory is not None and (type(memory) not in (int, float) or not 0 < memory < 1e6):
        raise ConfigError(f"hydra.launcher.mem_gb={memory}: write a number of gigabytes, or null")
    gpus, gres = fields["gpus_per_node"], fields["gres"]
    if gpus is not None and not re.fullmatch(r"\d+|[A-Za-z][\w.-]*(:\d+)?", str(gpus)):
        raise ConfigError(f"hydra.launcher.gpus_per_node={gpus}: write a number, or type and number, such as a100:1")
    if "gpu" in str(gres) and gpus not in (None, 0, 1):
        raise ConfigError(f"hydra.launcher.gres={gres}: gpus_per_node={gpus} asks for GPUs, too; write one of them")
    if type(fields["wait"]) is not bool:
        raise ConfigError(f"hydra.launcher.wait={fields['wait']}: write true or false")
    setup = fields["setup"] or []
    if not isinstance(setup, list) or not all(isinstance(line, str) for line in setup):
        raise ConfigError(f"hydra.launcher.setup={setup}: write a list of shell commands, ['module load cuda']")
    if not isinstance(fields["additional_parameters"] or {}, dict):
        raise ConfigError(
            "hydra.launcher.additional_parameters: write +hydra.launcher.additional_parameters.OPTION=VALUE"
        )


def sbatch_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch; None and False are left out."""
    options = {_OPTIONS.get(name, name): value for name, value in fields.items() if name not in _OURS}
    options |= options.pop("additional_parameters") or {}
    memory, delay = options.pop("mem_gb"), options.pop("signal_delay_s")
    options = {"signal": f"USR2@{delay}", "nodes": 1, "ntasks": 1} | options
    if memory is not None:
        options.setdefault("mem", f"{int(memory * 1024)}M")
    if "gpu" in str(options["gres"]) or options["gpus_per_node"] == 0:
        options["gpus_per_node"] = None
    return {name.replace("_", "-"): value for name, value in options.items()}


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait, for sbatch, too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _array(job: str) -> str:
    return job.partition("_")[0]


def _arrays(jobs: Jobs) -> list[str]:
    return list(dict.fromkeys(map(_array, jobs.values())))
