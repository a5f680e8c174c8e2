"""One self-contained HTML page: text, sortable tables and interactive charts, from analysis/report/web/.

Whatever comes from run directories is shown as text. Jinja escapes it in HTML; in the data of charts the characters
that could end a script are escaped; and the page's policy lets a browser run the page's own two scripts, known by
their hashes, and load nothing at all.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from ..figures.palette import Style
from ..figures.tables import game_name
from .charts import Chart, looks

WEB = Path(__file__).parent / "web"


@dataclass
class Block:
    """A part of a section; web/page.html shows it by its kind: text, lines, source, finding, folded, table, figure,
    files."""

    kind: str
    text: str = ""  # a paragraph, or the caption of a table or figure
    title: str = ""
    name: str = ""
    lines: Sequence[Any] = ()  # of a list; rows of a table; results of a finding; folded blocks
    heads: Sequence[dict[str, Any]] = ()  # of the columns of a table
    rows: Sequence[tuple[str, list[Chart]]] = ()  # of a figure: title and charts, side by side
    files: Sequence[str] = ()  # beside the page
    folded: bool = False


@dataclass
class Section:
    """A heading, and what is below it."""

    name: str
    title: str
    blocks: list[Block]


@dataclass
class Notes:
    """What has to be known about the runs, above everything: open only if a run has failed."""

    summary: str
    blocks: list[Block]
    failed: bool


def table(
    name: str,
    title: str,
    frame: pd.DataFrame,
    caption: str,
    files: Sequence[str],
    folded: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Block:
    """A sortable table, with the names of labels. Rows about a game or a label are hidden with it.

    Columns `x low` and `x high` are shown as an interval behind x, and columns without a number not at all.
    """
    ends = {f"{column} {end}" for column in frame for end in ("low", "high")} & set(frame)
    shown = [column for column in frame if column not in ends and not frame[column].isna().all()]
    numeric = {column: pd.api.types.is_numeric_dtype(frame[column]) for column in shown}
    rows = []
    for row in frame.to_dict("records"):
        cells = [_cell(_named(column, row[column], names), number) for column, number in numeric.items()]
        for cell, column in zip(cells, shown, strict=True):
            low, high = (row.get(f"{column} {end}", nan) for end in ("low", "high"))
            cell["text"] += f" [{shown_number(low)}, {shown_number(high)}]" if low == low and high == high else ""
        rows.append({"cells": cells, "env": row.get("game"), "label": row.get("label")})
    prefix = "ours: "  # of columns beside those of the paper
    heads = [
        {"text": prefix * str(name).startswith(prefix) + names.get(bare, bare), "number": number}
        for name, number in numeric.items()
        for bare in [str(name).removeprefix(prefix)]
    ]
    return Block("table", caption, title, name, lines=rows, heads=heads, files=files, folded=folded)


def render(
    title: str,
    subtitle: str,
    notes: Notes,
    sections: Sequence[Section],
    styles: Mapping[str, Style],
    envs: Mapping[str, str],
) -> str:
    """The whole page; envs: names of games. The same input gives the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    charts = [chart for section in sections for block in section.blocks for _, row in block.rows for chart in row]
    for number, chart in enumerate(charts):
        chart.number = number
    library, script = get_plotlyjs(), (WEB / "page.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        notes=notes,
        looks=looks(styles),
        envs=envs,
        cited=any(chart.cited for chart in charts),
        policy=_policy(library, script),
        css=Markup((WEB / "page.css").read_text()),
        library=Markup(library),
        script=Markup(script),
        data=Markup(as_script_data({"charts": [vars(chart) for chart in charts], "looks": looks(styles)})),
    )


def as_script_data(data: Any) -> str:
    """JSON that cannot end the script element it stands in, nor begin another or a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    # plotly sets styles as it draws, and makes the pictures that a reader saves.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _named(column: Any, value: Any, names: Mapping[str, str]) -> Any:
    if column == "method" and str(value).startswith("ours: "):
        return f"ours: {names.get(value[6:], value[6:])}"
    if column == "game" and isinstance(value, str):
        return game_name(value)
    return names.get(value, value) if column in ("label", "other") else value


def _cell(value: Any, number: bool) -> dict[str, Any]:
    """What it shows and, for a number, what it is sorted by."""
    if not number or pd.isna(value):
        return {"text": "" if number or value is None else str(value), "number": None}
    return {"text": shown_number(float(value)), "number": f"{value:.10g}"}


def shown_number(value: float) -> str:
    """Four digits, thousands apart."""
    if (value == int(value) and abs(value) < 1e15) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
