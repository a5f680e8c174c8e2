"""What the commands of analysis share: messages, errors and output files."""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path

from analysis.runs import AnalysisError
from meanq.config.errors import ConfigError


def command(main: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    """Decorate a command's `main`: a user's mistake ends it with one line on stderr and exit code 1."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> None:
        try:
            main(arguments)
        except (AnalysisError, ConfigError) as error:
            sys.exit(f"analysis: {error}")
        except OSError as error:
            what = f"--out {error.filename}" if error.filename else "output"
            sys.exit(f"analysis: {what}: cannot be written ({error.strerror})")

    return run


def say(messages: Iterable[str]) -> None:
    """Print to stderr, so that a table on stdout stays a table."""
    for message in messages:
        print(f"analysis: {message}", file=sys.stderr)


def write_out(path: Path, text: str) -> None:
    """Write the file that --out names."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        sys.exit(f"analysis: --out {path}: cannot be written ({error.strerror})")
