"""Write the generated parts of docs/: the tables of fields, from the schema, and of metrics, from the registry.

make docs        # or: python scripts/write_docs.py
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from meanq.config.reference import GROUPS, OPTIONS, group_choices, sections
from meanq.metrics.registry import METRICS

DOCS = Path(__file__).parents[1] / "docs"
FIELDS, ANALYSIS, WANDB = (DOCS / f"{name}.md" for name in ("fields", "analysis", "wandb"))
INTRODUCTION = """\
# Groups and fields

Written by `make docs` from `meanq/config/schema.py`. `python -m meanq.run --help` prints the same; `--cfg job` shows
the values of a run. The values shown here are those of `python -m meanq.run`.
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
    for path in (ANALYSIS, WANDB):
        path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
