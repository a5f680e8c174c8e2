"""hydra/launcher=slurm: each run of a sweep as a job of a SLURM cluster, through submitit.

Differences from hydra-submitit-launcher: one killed or failed job does not end the waiting for the others or make it
endless, no accounting database is needed, and jobs that are already queued are not submitted again.
"""

import contextlib
import copy
import io
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher as SubmititSlurmLauncher
from omegaconf import OmegaConf
from submitit import AutoExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths

from meanq.config.errors import ConfigError
from meanq.launching.launch import context_for, frozen_configs, job_return
from meanq.launching.slurm_queue import Submitted, Waiting, already_queued, array_of, index_file, queue, remember
from meanq.training.signals import hold_stop_signals

# A job that is preempted while Python starts, before submitit handles signals, would die of the signal and count as
# failed. So it ignores signals until then; SLURM kills it in the end, and queues it again.
_PYTHON = f'sh -c \'trap "" USR2 TERM; exec "$0" "$@"\' {shlex.quote(sys.executable)}'

# Since SLURM 22.05 srun no longer takes the number of cores from its job: a run would be bound to one core.
_SETUP = 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"'

# Words in messages of sbatch, the field that they are about, and where to look.
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


class SlurmLauncher(SubmititSlurmLauncher):
    """Submits the runs that are neither finished nor queued, then waits for all."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit the jobs and wait for them."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "hydra/launcher=slurm: there is no sbatch here; start this on your cluster's login node, "
                "or write hydra/launcher=local"
            )
        frozen = frozen_configs(self.hydra_context)
        by_directory = {frozen.directory(overrides).absolute(): overrides for overrides in job_overrides}
        folder, name = self._index_folder(), self.params["name"]
        jobs = {d: job for d, job in already_queued(folder, name).items() if d in by_directory}
        if jobs:
            arrays = ", ".join(_arrays(jobs.values()))
            print(f"{len(jobs)} of {len(job_overrides)} runs are queued or running already, as job {arrays}")
        missing = [directory for directory in by_directory if directory not in jobs]
        if missing:
            ids = self._submit([by_directory[directory] for directory in missing])
            submitted = [Submitted(*pair) for pair in zip(ids, missing, strict=True)]
            remember(folder, submitted, name)
            self._announce(submitted)
            jobs |= {job.directory: job for job in submitted}
        try:
            failures = Waiting(list(jobs.values()), lambda job_id: self._paths(job_id).result_pickle).wait(queue)
        except KeyboardInterrupt:
            print(
                "\nLeft; the jobs go on. Give the same command again to wait for them; to cancel: scancel "
                + " ".join(_arrays(jobs.values())),
                flush=True,
            )
            raise SystemExit(130) from None
        return [job_return(overrides, failures[jobs[d].job_id]) for d, overrides in by_directory.items()]

    def __call__(self, *arguments: Any, **named: Any) -> JobReturn:
        """Run one job; called on the cluster."""
        hold_stop_signals()
        return super().__call__(*arguments, **named)

    def _submit(self, job_overrides: Sequence[Sequence[str]]) -> list[str]:
        """Submit jobs, as an array if there are several, and return their ids."""
        assert self.config is not None
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        folder = self._index_folder()
        first = not folder.exists()
        try:
            executor = AutoExecutor(
                cluster="slurm",
                folder=self.params["submitit_folder"],
                slurm_max_num_timeout=self.params["max_num_timeout"],
                slurm_python=_PYTHON,
            )
            executor.update_parameters(**self._executor_parameters())
            jobs = []
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints sbatch's message, which we explain below
                with executor.batch():
                    for number, overrides in enumerate(job_overrides):
                        launcher = copy.copy(self)
                        launcher.hydra_context = context_for(self.hydra_context, overrides)
                        arguments = (list(overrides), "hydra.sweep.dir", number, str(number), Singleton.get_state())
                        jobs.append(executor.submit(launcher, *arguments))
                return [str(job.job_id) for job in jobs]
        except (FailedJobError, FailedSubmissionError) as error:
            if first:
                shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(explain_rejection(str(error), self.params)) from None

    def _executor_parameters(self) -> dict[str, Any]:
        """Name the fields as submitit does: with a prefix where they are SLURM's alone."""
        shared = set(OmegaConf.structured(BaseQueueConf).keys())
        parameters = {
            key if key in shared else f"slurm_{key}": value
            for key, value in self.params.items()
            if key not in ("submitit_folder", "max_num_timeout")
        }
        parameters["slurm_setup"] = [_SETUP, *(parameters.get("slurm_setup") or [])]
        return parameters

    def _index_folder(self) -> Path:
        return JobPaths.get_first_id_independent_folder(self.params["submitit_folder"])

    def _paths(self, job_id: str) -> JobPaths:
        return JobPaths(self.params["submitit_folder"], job_id=job_id)

    def _announce(self, submitted: Sequence[Submitted]) -> None:
        array = array_of(submitted[0].job_id)
        several = len(submitted) > 1
        what = f"job array {array}, at most {self.params['array_parallelism']} at once" if several else f"job {array}"
        log = str(self._paths(f"{array}_*" if several else array).stdout).replace("_0_log.out", "_0_log.*")
        one = f", or one run: scancel {submitted[-1].job_id}" if several else ""
        print(
            f"Submitted {len(submitted)} run(s) as SLURM {what}\n"
            f"  which is which   {index_file(self._index_folder(), array)}\n"
            f"  logs             {log}\n"
            f"  queue            squeue --jobs {array}\n"
            f"  cancel           scancel {array}{one}\n"
            "This command now waits. Ctrl-C leaves the jobs running; the same command given again waits for them.",
            flush=True,
        )


def _arrays(jobs: Iterable[Submitted]) -> list[str]:
    return sorted({array_of(job.job_id) for job in jobs})


def explain_rejection(text: str, params: Mapping[str, Any]) -> str:
    """Name the field that a message of sbatch is about."""
    said = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    reason = said[-1].removeprefix("Batch job submission failed: ") if said else "sbatch gave no reason"
    for word, name, where in _COMPLAINTS:
        if word in text.lower():
            return f"hydra.launcher.{name}={params.get(name)}: SLURM refused the jobs ({reason}); {where}"
    asked = ", ".join(f"{key}={params.get(key)}" for key in ("gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min"))
    return f"hydra/launcher=slurm: SLURM refused the jobs ({reason}); asked for {asked}"
