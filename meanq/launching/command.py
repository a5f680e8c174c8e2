"""The command `meanq run`: plan the runs, launch them, summarise them; the exit code."""

import os
import signal
import sys
from pathlib import Path

import hydra

import meanq
from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, register_schema
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.execute import BUSY, CANNOT_WORK, FAILED, LeftError, complain, worst_code
from meanq.launching.plan import CONFIG_NAME, IN_PROCESS, Plan, hydra_arguments, plan
from meanq.rundir.progress import FINISHED, Outcome


def run_command(description: str) -> int:
    """Do what sys.argv asks for and return the exit code. `description` opens the help page."""
    outlive_terminal()
    sys.path.insert(0, str(Path.cwd()))  # the console script, too, imports rules and environments from here
    if {"-h", "--help"} & set(sys.argv[1:]):
        from meanq.config.reference import help_page

        print(help_page(description))
        return 0
    if "--version" in sys.argv[1:]:
        print(f"meanq {meanq.__version__}")
        return 0
    if "COMP_LINE" in os.environ:  # the shell asks for completions
        from meanq.launching.completion import completions

        print("\n".join(completions(os.environ["COMP_LINE"].split(" ")[-1])))
        return 0
    dry_run = "--dry-run" in sys.argv
    try:
        sys.argv[1:] = hydra_arguments([a for a in sys.argv[1:] if a != "--dry-run"])
        planned = plan(sys.argv[1:])
        if planned is None:
            return _let_hydra_show()
        if dry_run or planned.study:
            from meanq.launching.cost import check_fits, show_plan

            if dry_run:
                check_fits(planned)
            show_plan(planned)
    except ConfigError as error:
        complain(error)
        return CANNOT_WORK
    return 0 if dry_run else _run_all(planned)


def _let_hydra_show() -> int:
    """Let Hydra handle --cfg, --info, --hydra-help and completions; none of them calls the decorated function."""
    register_schema()
    hydra.main(config_path=str(CONFIG_DIR), config_name=CONFIG_NAME, version_base="1.3")(print)()
    return 0


def _run_all(planned: Plan) -> int:
    from meanq.status.summary import print_summary
    from meanq.training.terminal import make_console

    before = {directory: Outcome.of(directory) for directory in planned.directories}
    left = False
    try:
        code = _launch(planned)
    except LeftError as error:
        code, left = error.code, True
    if code > 128:
        print(f"\nmeanq: stopped by {signal.Signals(code - 128).name}; the same command goes on", file=sys.stderr)
    outcomes = {directory: Outcome.of(directory, outcome) for directory, outcome in before.items()}
    if any(directory.exists() for directory in outcomes):
        print_summary(make_console(), outcomes)
    unfinished = sum(outcome.state not in FINISHED for outcome in outcomes.values())
    if code == BUSY:
        what = f"{unfinished} of {len(outcomes)} runs are not finished: they are queued, or other processes train them"
        complain(f"{what}; this command has left them alone, give it again later (exit code {BUSY})")
    return code if code or left else int(unfinished > 0)


def _launch(planned: Plan) -> int:
    """Return 0, the worst code of a failed run, or 128 + the signal that stopped the command. Raises LeftError."""
    from meanq.launching.launch import launch

    try:
        failures = launch(planned)
    except ConfigError as error:  # from the launcher
        complain(error)
        return CANNOT_WORK
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    if planned.launcher != IN_PROCESS:  # a run in this process has reported its failure already
        for failure in failures:
            complain(failure)
    return worst_code(failures)
