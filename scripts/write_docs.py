"""Write the generated parts of docs/: fields, metrics, commands, the Python API, from the code.

make docs        # or: python scripts/write_docs.py

Tests compare the files with `pages` and `PICTURES`.
"""

import inspect
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

import meanq
from analysis.figures.curves import draw_study
from analysis.figures.palette import styles
from analysis.figures.panels import settings
from analysis.figures.tables import read_table
from meanq.cli import COMMANDS, command_module
from meanq.config.reference import GROUPS, OPTIONS, group_choices, sections
from meanq.config.schema import CONFIG_DIR
from meanq.metrics.registry import METRICS

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"
STUDY = PROJECT / "ablations" / "results" / "target_network" / "figures" / "study.csv"
COMMANDS_INTRODUCTION = """\
# Commands

Written by `make docs` from the commands' own parsers; `meanq COMMAND --help` prints the same. Without a command, the
arguments are those of `run`: `meanq -m algo=dqn,meanq` is `meanq run -m algo=dqn,meanq`. In a checkout
`python -m analysis.report` and the like work as well, and from the installed package `python -m meanq.analysis.report`.
"""
API_INTRODUCTION = """\
# Python API

Written by `make docs` from the docstrings of `meanq/api.py`. [From Python](python.md) shows it in use.
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


def api_page() -> str:
    """docs/api.md."""
    parts = [API_INTRODUCTION]
    for name in sorted(meanq.__all__, key=lambda name: (name[0].isupper(), name)):
        thing = getattr(meanq, name)
        parts.append(f"## meanq.{name}\n\n{described(name, thing)}")
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and inspect.getdoc(value):
                parts.append(f"### {name}.{member}\n\n{described(member, value)}")
    return "\n".join(parts)


def described(name: str, thing: Any) -> str:
    """The signature, if there is one, and the docstring."""
    parts = f"{inspect.getdoc(thing)}\n".split("`")  # every second one is code
    text = "`".join(p if i % 2 else p.replace("<", "&lt;").replace("*", r"\*") for i, p in enumerate(parts))
    if not inspect.isfunction(thing):
        return text
    signature = str(inspect.signature(thing)).replace("'", "").replace("self, ", "").replace("self", "")
    return f"```python\n{name}{signature}\n```\n\n{text}"


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


def table_of_algorithms() -> str:
    """The algorithms, each with the comment at the top of its file."""
    rows = []
    for path in sorted((CONFIG_DIR / "algo").glob("[a-z]*.yaml")):
        comment = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
        rows.append((f"`{path.stem}`", " ".join(line.removeprefix("#").strip() for line in comment)))
    return markdown(("algorithm", "what it is"), rows)


def table_of_studies() -> str:
    """The studies of ablations/, each with its question and its scales."""
    rows = []
    for path in sorted((PROJECT / "ablations").glob("*.yaml")):
        study = yaml.safe_load(path.read_text())
        scales = " ".join(f"`{scale}`" for scale in study["scales"])
        rows.append((f"[{path.stem}](../ablations/{path.name})", study["question"].strip(), scales))
    return markdown(("study", "question", "scales"), rows)


TABLES = {
    "metrics": table_of_metrics,
    "mirrors": table_of_mirrors,
    "algorithms": table_of_algorithms,
    "studies": table_of_studies,
}


def with_tables(text: str) -> str:
    """A document with the tables between its marks (`<!-- metrics -->` ... `<!-- end -->`) replaced."""

    def replaced(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->\n.*?<!-- end -->", replaced, text, flags=re.DOTALL)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)]
    return "".join(lines).replace("*", "\\*")


def pages() -> dict[Path, str]:
    """The pages that are generated, or have generated tables."""
    makers = {"fields": fields_page, "commands": commands_page, "api": api_page}
    written = {DOCS / f"{name}.md": make() for name, make in makers.items()}
    others = {path: path.read_text() for path in sorted(DOCS.glob("*.md")) if path not in written}
    return written | {path: with_tables(text) for path, text in others.items() if "<!-- end -->" in text}


def draw_asterix(path: Path) -> None:
    """README's figure: return and bias of the study target_network on MinAtar Asterix, from its kept table."""
    table = read_table(STUDY)
    rows = table[(table["env"] == "minatar_asterix") & table["metric"].isin(["return", "bias_clipped"])]
    with settings():
        figure, _ = draw_study(rows, styles(sorted(set(rows["label"]))))
        figure.savefig(path, metadata={"Date": None, "Title": "Return and bias in MinAtar Asterix"})


PICTURES = {DOCS / "images" / "asterix.svg": draw_asterix}


def main() -> None:
    """Write the files."""
    for path, text in pages().items():
        path.write_text(text)
    for path, draw in PICTURES.items():
        draw(path)


if __name__ == "__main__":
    main()
