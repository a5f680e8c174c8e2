"""Train MeanQ and the methods it is compared with: one run, or with -m a sweep.

python -m meanq.run
    MeanQ on MinAtar Asterix, minutes on a CPU
python -m meanq.run algo=meanq algo.ensemble_size=10 env=minatar/seaquest
    any group can be chosen and any field overridden
python -m meanq.run -m algo=meanq,ens_dqn env=seaquest seed=0-4
    a sweep: ten runs of Atari Seaquest
python -m meanq.run --cfg job algo=avg_dqn env=hero
    show the configuration of a run
python -m meanq.run -m +study=target_network scale=minatar --dry-run
    list the runs of a study of ablations/; without --dry-run, train them
"""

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, Config
from meanq.launching.closed_terminal import outlive_terminal
from meanq.launching.plan import (
    CONFIG_NAME,
    Plan,
    expand_seed_ranges,
    hydra_arguments,
    label_override,
    plan,
    register_schema,
)
from meanq.rundir.files import read_status
from meanq.rundir.layout import run_directory
from meanq.rundir.lock import BusyError
from meanq.rundir.reader import FINISHED, Outcome
from meanq.rundir.writer import record_failure

# The process that has the command line, and the exit codes of runs in it: there a sweep goes on after a failure, and
# the exit code tells. In a process that a launcher started a failure is raised, so that the launcher sees it.
_command_line_process = 0
_codes: list[int] = []


_MEANINGS = {
    1: "failed; its status.json says why",
    2: "not started, because its configuration cannot work here",
    3: "not started, because another process trains there",
}


class RunFailedError(RuntimeError):
    """A run failed; its directory says why."""


def job(composed: DictConfig) -> None:
    """One run, as Hydra's launchers call it."""
    config = from_omegaconf(composed)
    code = execute(config, HydraConfig.get().overrides.task)
    if os.getpid() == _command_line_process:
        _codes.append(code)
    elif code:
        raise RunFailedError(f"{run_directory(config)}: {_MEANINGS[code]}")


def execute(config: Config, overrides: Sequence[str]) -> int:
    """Train unless finished already, from where it was left; a failure is noted in the run's directory. The exit code.

    0 finished, 1 failed, 2 the configuration cannot work, 3 another process is at it.
    """
    from meanq.learning.agent import DivergedError
    from meanq.mirrors.process import make_mirror
    from meanq.rundir.checkpoint import CheckpointError
    from meanq.training.session import Session
    from meanq.training.terminal import TerminalReporter, make_console

    console = make_console()
    directory = run_directory(config)
    if read_status(directory).get("state") == "finished":
        console.print(f"{directory} is finished already: skipped", highlight=False, soft_wrap=True)
        return 0
    reporter = TerminalReporter(console)
    run = None
    try:
        run = Session(config, overrides=overrides, make_mirror=make_mirror)
        run.train(reporter)
    except (ConfigError, BusyError) as error:
        complain(error)
        return 3 if isinstance(error, BusyError) else 2
    except (CheckpointError, DivergedError) as error:
        complain(error)
        return 1
    except Exception as error:  # noqa: BLE001 - whatever a run dies of is in its directory, and the sweep goes on
        reporter.close()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            complain(f"{directory}: {error.strerror}; its tables are whole: make room and give the same command again")
        else:
            traceback.print_exc()
        if run is None:
            with contextlib.suppress(OSError, ConfigError, BusyError):  # then the lines above are all there is
                record_failure(config, error)
        return 1
    finally:
        reporter.close()
    return 0


def complain(error: BaseException | str) -> None:
    """What went wrong, in a line."""
    print(f"meanq: {error}", file=sys.stderr)


def main() -> None:
    """The command line."""
    outlive_terminal()
    sys.path.insert(0, str(Path.cwd()))  # so that the console script, too, can import rules and environments from here
    if {"-h", "--help"} & set(sys.argv[1:]):
        from meanq.config.reference import help_page

        print(help_page(__doc__ or ""))
        sys.exit(0)
    register_schema()
    global _command_line_process
    _command_line_process = os.getpid()
    planned: Plan | None = None
    dry_run = "--dry-run" in sys.argv
    try:
        if "COMP_LINE" in os.environ:  # the shell asks for completions
            os.environ["COMP_LINE"] = " ".join(expand_seed_ranges(os.environ["COMP_LINE"].split(" ")))
        else:
            sys.argv[1:] = hydra_arguments([a for a in sys.argv[1:] if a != "--dry-run"])
            planned = plan(sys.argv[1:])
        if planned and (dry_run or planned.study):
            from meanq.launching.cost import show_plan
            from meanq.training.terminal import make_console

            show_plan(make_console(), planned)
    except ConfigError as error:
        complain(error)
        sys.exit(2)
    if dry_run and planned:
        sys.exit(0)
    directories = planned.directories if planned else []
    before = {directory: Outcome.of(directory) for directory in directories}
    code: int | str | None = 0
    try:
        if planned and planned.multirun:
            from meanq.launching.launch import launch

            for failure in launch(planned, job):
                complain(failure)
                code = 1
        else:
            if planned:
                sys.argv.append(label_override(planned.configs[0]))
            hydra.main(config_path=str(CONFIG_DIR), config_name=CONFIG_NAME, version_base="1.3")(job)()
    except ConfigError as error:  # of the launcher
        complain(error)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as stop:
        code = stop.code
    if isinstance(code, int) and code > 128:  # by a signal
        print(f"\nmeanq: stopped by {signal.Signals(code - 128).name}; the same command goes on", file=sys.stderr)
    outcomes = {directory: Outcome.of(directory, before[directory]) for directory in directories}
    if any(directory.exists() for directory in directories):
        from meanq.training.terminal import make_console, summary

        summary(make_console(), outcomes)
    unfinished = any(outcome.state not in FINISHED for outcome in outcomes.values())
    sys.exit(code or max(_codes, default=0) or int(unfinished))


if __name__ == "__main__":
    # Run as the importable module, so that a launcher can hand its functions to other processes.
    from meanq.run import main as module_main

    module_main()
