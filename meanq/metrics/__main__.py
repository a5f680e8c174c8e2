"""Documents the metrics, from the registry.

python -m meanq.metrics                                   print the tables
python -m meanq.metrics docs/analysis.md docs/wandb.md    write them into these files
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from meanq.metrics.registry import METRICS


def table_of_metrics() -> str:
    """The metrics of `python -m analysis.metrics`, as Markdown."""
    rows = [
        (f"`{m.name}`", m.scope + ", at its last step" * m.once, m.unit, m.meaning)
        for m in METRICS.values()
        if m.in_table
    ]
    return _markdown([("metric", "scope", "unit", "meaning"), *rows])


def table_of_mirrors() -> str:
    """What W&B and TensorBoard get, as Markdown."""
    mirrored = [m for m in METRICS.values() if m.mirror]
    rows = [(f"`{m.mirror}`", m.meaning, f"`{m.source}`") for m in sorted(mirrored, key=lambda m: m.source)]
    return _markdown([("name", "what", "from"), *rows])


TABLES = {"metrics": table_of_metrics, "mirrors": table_of_mirrors}


def with_tables(text: str) -> str:
    """A document with the tables between its marks (`<!-- metrics -->` ... `<!-- end -->`) replaced."""

    def replaced(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->\n.*?<!-- end -->", replaced, text, flags=re.DOTALL)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    text = "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))
    return text.replace("*", "\\*")


def main(paths: Sequence[str]) -> None:
    """Print the tables, or write them into files."""
    for path in map(Path, paths):
        path.write_text(with_tables(path.read_text()))
    if not paths:
        print("\n".join(table() for table in TABLES.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
