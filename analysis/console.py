"""What the commands of analysis share: messages, errors and output files."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

from meanq.config.errors import LONGEST_MESSAGE, ConfigError, printable

from .runs import AnalysisError


def command(main: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    """Decorate a command's `main`: a user's mistake ends it with one line on stderr and exit code 1."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> None:
        try:
            main(arguments)
        except (AnalysisError, ConfigError) as error:
            sys.exit(f"analysis: {printable(str(error), LONGEST_MESSAGE)}")

    return run


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `meanq NAME` whose help shows the docstring as it is written."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"meanq {name}", description=description, formatter_class=raw)


def say(messages: Iterable[str]) -> None:
    """Print to stderr, so that a table on stdout stays a table."""
    for message in messages:
        print(f"analysis: {printable(message, LONGEST_MESSAGE)}", file=sys.stderr)


def default_directory(path: Path, name: str) -> Path:
    """A directory of this name below a study; beside a run, because a run's directory is its own."""
    return (path.parent if re.fullmatch(r"seed_\d+", path.resolve().name) else path) / name


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report an OSError as a problem with --out."""
    try:
        yield
    except OSError as error:
        raise AnalysisError(f"--out {error.filename or path}: cannot be written ({error.strerror})") from None


def write_out(path: Path, text: str) -> None:
    """Write the file that --out names."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
