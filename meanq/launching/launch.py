"""Start the runs of a plan: one after the other here, several at once, or as jobs of a cluster.

Every run was composed and checked before the first one starts, and a launcher receives that frozen configuration, so
an edit of conf/ does not change waiting runs. A launcher is a class with `launch(runs)`, which returns the failures.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from meanq.config.extensions import loggers
from meanq.config.schema import Config
from meanq.launching.execute import Run, RunFailedError, execute
from meanq.launching.plan import IN_PROCESS, Plan, make_launcher
from meanq.rundir.layout import run_directory
from meanq.rundir.reader import read_status
from meanq.rundir.reuse import reuse, said_of
from meanq.rundir.sweeps import announced


def launch(plan: Plan) -> list[RunFailedError]:
    """Run whatever is not finished; return the failures."""
    runs = [Run(*pair) for pair in zip(plan.configs, plan.job_overrides, strict=True)]
    runs = [run for run in runs if not _done(run.config, may_copy=plan.study is not None)]
    with contextlib.ExitStack() as stack:
        for root in {run.config.root for run in runs} if len(runs) > 1 else ():
            planned = [run_directory(run.config) for run in runs if run.config.root == root]
            stack.enter_context(announced(Path(root), planned))
        return _launch(plan, runs)


def _launch(plan: Plan, runs: Sequence[Run]) -> list[RunFailedError]:
    if runs and plan.launcher != IN_PROCESS:
        failures: list[RunFailedError] = make_launcher(plan.launcher_fields).launch(runs)
        return failures
    failures = []
    for run in runs:
        try:
            execute(run)
        except RunFailedError as failure:
            failures.append(failure)
    return failures


def _done(config: Config, may_copy: bool) -> bool:
    """Whether a run is finished, or was copied from a finished run of another study."""
    directory = run_directory(config)
    status = read_status(directory)
    if status.get("state") == "finished":
        print(f"{directory} is finished already: skipped", flush=True)
        return True
    # A run that is mirrored elsewhere must exist there under its own name, so it is trained.
    twin = reuse(config) if may_copy and not status and not loggers(config.logger.name) else None
    if twin:
        print(f"{directory} is the same run as {twin}, which is finished: copied{said_of(twin)}", flush=True)
    return twin is not None
