"""Write the generated parts of docs/: fields from the schema, metrics from the registry, commands from their parsers.

make docs        # or: python scripts/write_docs.py
"""

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

from meanq.cli import COMMANDS, command_module
from meanq.config.reference import GROUPS, OPTIONS, group_choices, sections
from meanq.metrics.registry import METRICS

DOCS = Path(__file__).parents[1] / "docs"
FIELDS, ANALYSIS, WANDB = (DOCS / f"{name}.md" for name in ("fields", "analysis", "wandb"))
COMMANDS_PAGE = DOCS / "commands.md"
COMMANDS_INTRODUCTION = """\
# Commands

Written by `make docs` from the commands' own parsers; `meanq COMMAND --help` prints the same. Without a command, the
arguments are those of `run`: `meanq -m algo=dqn,meanq` is `meanq run -m algo=dqn,meanq`. In a checkout
`python -m analysis.report` and the like work as well, and from the installed package `python -m meanq.analysis.report`.
"""
INTRODUCTION = """\
# Groups and fields

Written by `make docs` from `meanq/config/schema.py`. `meanq run --help` prints the same; `--cfg job` shows
the values of a run. The values shown here are those of `meanq run`.
"""


def fields_page() -> str:
    """docs/fields.md."""
    groups = [(f"`{group}`", meaning, ", ".join(group_choices(group))) for group, meaning in GROUPS.items()]
    parts = [
        INTRODUCTION,
        "## Options\n\n" + markdown(("option", "meaning"), ((f"`{name}`", text) for name, text in OPTIONS.items())),
        "## Groups: choose with `GROUP=CHOICE`\n\n" + markdown(("group", "meaning", "choices"), groups),
    ]
    for title, rows in sections().items():
        table = markdown(("field", "meaning and values"), ((f"`{name}`", text) for name, text in rows.items()))
        parts.append(f"## {title}\n\n{table}")
    return "\n".join(parts)


class Parsing(Exception):
    """Carries the parser of a command out of its `main`."""


def parser_of(name: str) -> ArgumentParser:
    """The parser of a command, whose `main` is stopped where it would parse."""

    def stop(self: ArgumentParser, *_: object) -> None:
        raise Parsing(self)

    with patch.object(ArgumentParser, "parse_args", stop):
        try:
            command_module(name).main([])
        except Parsing as made:
            return made.args[0]
    raise AssertionError(f"{name} parses no arguments")


def commands_page() -> str:
    """docs/commands.md."""
    summaries = [(f"`meanq {name}`", command.summary) for name, command in COMMANDS.items()]
    parts = [COMMANDS_INTRODUCTION + "\n" + markdown(("command", "what it does"), summaries)]
    parts.append(f"## meanq run\n\n```text\n{(command_module('run').__doc__ or '').strip()}\n```\n")
    for name in [name for name in COMMANDS if name != "run"]:
        parser = parser_of(name)
        rows = []
        for action in parser._actions[1:]:  # the first is --help
            shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
            choices = f"{'; ' * bool(meaning)}one of {', '.join(map(str, action.choices))}" if action.choices else ""
            rows.append((f"`{shown}`", meaning + choices))
        text = (parser.description or "").strip()
        parts.append(f"## {parser.prog}\n\n```text\n{text}\n```\n\n" + markdown(("argument", "meaning"), rows))
    return "\n".join(parts)


def table_of_metrics() -> str:
    """The metrics of `python -m analysis.metrics`."""
    rows = [
        (f"`{m.name}`", m.scope + ", at its last step" * m.once, m.unit, m.meaning)
        for m in METRICS.values()
        if m.in_table
    ]
    return markdown(("metric", "scope", "unit", "meaning"), rows)


def table_of_mirrors() -> str:
    """The metrics in W&B and TensorBoard."""
    mirrored = [m for m in METRICS.values() if m.mirror]
    rows = [(f"`{m.mirror}`", m.meaning, f"`{m.source}`") for m in sorted(mirrored, key=lambda m: m.source)]
    return markdown(("name", "what", "from"), rows)


TABLES = {"metrics": table_of_metrics, "mirrors": table_of_mirrors}


def with_tables(text: str) -> str:
    """A document with the tables between its marks (`<!-- metrics -->` ... `<!-- end -->`) replaced."""

    def replaced(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->\n.*?<!-- end -->", replaced, text, flags=re.DOTALL)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)]
    return "".join(lines).replace("*", "\\*")


def main() -> None:
    """Write the files."""
    FIELDS.write_text(fields_page())
    COMMANDS_PAGE.write_text(commands_page())
    for path in (ANALYSIS, WANDB):
        path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
