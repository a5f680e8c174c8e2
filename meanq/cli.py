"""The command `meanq`: one door to training and to what reads its runs.

`meanq COMMAND ...` imports only what the command needs. Without a command, the arguments are those of `run`:
`meanq -m algo=dqn,meanq` is `meanq run -m algo=dqn,meanq`.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import meanq
from meanq.config.errors import ConfigError, closest

_PACKAGE = Path(__file__).parent


class Command(NamedTuple):
    """Where a command's `main` is, and what it does in a few words."""

    module: str
    summary: str


COMMANDS = {
    "run": Command("meanq.run", "train: one run, or with -m a sweep or a study"),
    "status": Command("meanq.status.__main__", "what every run is doing"),
    "report": Command("meanq.analysis.report.__main__", "one page with all results of a set of runs"),
    "figures": Command("meanq.analysis.figures.__main__", "the paper's figures and more, with their tables"),
    "metrics": Command("meanq.analysis.metrics", "return, bias, std, Jensen gap, ... as one table"),
    "aggregate": Command("meanq.analysis.aggregate", "scores over games, with intervals (as rliable)"),
    "findings": Command("meanq.analysis.findings.__main__", "do runs support the paper's conclusions?"),
    "compare": Command("meanq.analysis.compare", "scores next to the paper's tables"),
    "evaluate": Command("meanq.analysis.evaluate", "evaluate trained agents again"),
    "results": Command("meanq.analysis.results.__main__", "keep the results of a study"),
    "video": Command("meanq.analysis.video", "a trained agent at play, with its value estimates"),
    "upload": Command("meanq.mirrors.upload", "upload runs to W&B from their directories"),
    "doctor": Command("meanq.launching.doctor", "what this machine has; does the learner work on its GPUs?"),
    "dashboard": Command("meanq.mirrors.dashboard", "make a W&B workspace with the paper's metrics"),
}


def help_text() -> str:
    """What `meanq --help` prints."""
    commands = [f"  {name:11}{command.summary}" for name, command in COMMANDS.items()]
    lines = [
        "usage: meanq COMMAND ...",
        "",
        str(meanq.__doc__).strip().splitlines()[0],
        "",
        "Commands; `meanq COMMAND --help` explains each",
        *commands,
        "",
        "Without a command the arguments are those of `run`:",
        "  meanq env=minatar/breakout                 one run, minutes on a CPU",
        "  meanq -m algo=dqn,meanq seed=0-4           a sweep: ten runs",
        "  meanq report runs                          its results, as a page",
        "",
        "  --version  print the version of meanq",
        '  TAB completion: eval "$(meanq --shell-completion install=bash)"',
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    first = words[0] if words else ""
    typed = os.environ.get("COMP_LINE", "").split(" ")[1:]  # the shell asks for completions
    if len(typed) == 1:
        print("\n".join(name for name in COMMANDS if name.startswith(typed[0])))
    elif typed and typed[0] in COMMANDS and typed[0] != "run":
        return 0  # the shell completes files
    if first in ("-h", "--help"):
        print(help_text())
        return 0
    if first == "--version":
        print(f"meanq {meanq.__version__}")
        return 0
    try:
        name = command_of(words)
    except ConfigError as error:
        print(f"meanq: {error}", file=sys.stderr)
        return 2
    return _call(name, words[1:] if first == name else words)


def command_of(words: Sequence[str]) -> str:
    """The command that a command line gives. Options and overrides without a command belong to `run`."""
    first = words[0] if words else "run"
    if first in COMMANDS:
        return first
    if first[:1] in ("-", "+", "~") or "=" in first:
        return "run"
    raise ConfigError(f"{first}: no such command{closest(first, COMMANDS)}")


def _call(name: str, arguments: list[str]) -> int:
    """Call the `main` of a command, as `python -m` would."""
    sys.argv[1:] = arguments
    module = command_module(name)
    sys.path.insert(0, str(Path.cwd()))  # of the console script, too: a user's own environments are imported from here
    try:
        return module.main() or 0
    except KeyboardInterrupt:
        return 130


def command_module(name: str) -> ModuleType:
    """Import the module of a command."""
    if COMMANDS[name].module.startswith("meanq.analysis."):
        _import_analysis()
    return importlib.import_module(COMMANDS[name].module)


def _import_analysis() -> None:
    """Import `meanq.analysis`. A wheel has it inside the package, a checkout beside it.

    It is never imported as `analysis`, which may be a folder of the user's.
    """
    name, beside = "meanq.analysis", _PACKAGE.parent / "analysis"
    if name in sys.modules or (_PACKAGE / "analysis").is_dir():
        return
    spec = importlib.util.spec_from_file_location(
        name, beside / "__init__.py", submodule_search_locations=[str(beside)]
    )
    assert spec and spec.loader
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
