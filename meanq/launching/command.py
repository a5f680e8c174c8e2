"""The command `python -m meanq.run`: plan the runs, launch them, summarise them; the exit code."""

import os
import signal
import sys
from pathlib import Path

import hydra
from hydra.types import TaskFunction

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, register_schema
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.execute import CANNOT_WORK, FAILED, RunFailedError, complain
from meanq.launching.hydra_bridge import CONFIG_NAME
from meanq.launching.plan import IN_PROCESS, Plan, hydra_arguments, plan
from meanq.launching.seeds import expand_seed_ranges
from meanq.rundir.progress import FINISHED, Outcome


def run_command(job: TaskFunction, description: str) -> int:
    """Do what sys.argv asks for and return the exit code. `job` trains one run; `description` opens the help page."""
    outlive_terminal()
    sys.path.insert(0, str(Path.cwd()))  # the console script, too, imports rules and environments from here
    if {"-h", "--help"} & set(sys.argv[1:]):
        from meanq.config.reference import help_page

        print(help_page(description))
        return 0
    if "COMP_LINE" in os.environ:  # the shell asks for completions
        os.environ["COMP_LINE"] = " ".join(expand_seed_ranges(os.environ["COMP_LINE"].split(" ")))
        return _let_hydra_show(job)
    dry_run = "--dry-run" in sys.argv
    try:
        sys.argv[1:] = hydra_arguments([a for a in sys.argv[1:] if a != "--dry-run"])
        planned = plan(sys.argv[1:])
        if planned is None:
            return _let_hydra_show(job)
        if dry_run or planned.study:
            from meanq.launching.cost import show_plan
            from meanq.training.terminal import make_console

            show_plan(make_console(), planned)
    except ConfigError as error:
        complain(error)
        return CANNOT_WORK
    return 0 if dry_run else _run_all(planned, job)


def _let_hydra_show(job: TaskFunction) -> int:
    """Let Hydra handle --cfg, --info, --hydra-help and completions."""
    register_schema()
    hydra.main(config_path=str(CONFIG_DIR), config_name=CONFIG_NAME, version_base="1.3")(job)()
    return 0


def _run_all(planned: Plan, job: TaskFunction) -> int:
    before = {directory: Outcome.of(directory) for directory in planned.directories}
    code = _launch(planned, job)
    if code > 128:
        print(f"\nmeanq: stopped by {signal.Signals(code - 128).name}; the same command goes on", file=sys.stderr)
    outcomes = {directory: Outcome.of(directory, outcome) for directory, outcome in before.items()}
    if any(directory.exists() for directory in outcomes):
        from meanq.status.summary import print_summary
        from meanq.training.terminal import make_console

        print_summary(make_console(), outcomes)
    unfinished = any(outcome.state not in FINISHED for outcome in outcomes.values())
    return code or int(unfinished)


def _launch(planned: Plan, job: TaskFunction) -> int:
    """Return 0, the worst code of a failed run, or 128 + the signal that stopped the command."""
    from meanq.launching.launch import launch

    try:
        failures = launch(planned, job)
    except ConfigError as error:  # from the launcher
        complain(error)
        return CANNOT_WORK
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    code = 0
    for failure in failures:
        if planned.launcher == IN_PROCESS and isinstance(failure, RunFailedError):  # reported already
            code = max(code, failure.code)
        else:
            complain(failure)
            code = max(code, FAILED)
    return code
