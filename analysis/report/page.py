"""One self-contained HTML page: text, sortable tables and interactive charts, from analysis/report/web/.

Whatever comes from run directories is shown as text. Jinja escapes it in HTML; in the data of charts the characters
that could end a script are escaped; and the page's policy lets a browser run the page's own two scripts, known by
their hashes, and load nothing at all.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analysis.figures.palette import Style
from analysis.report.charts import Chart, looks

WEB = Path(__file__).parent / "web"


@dataclass
class Text:
    """A paragraph; kind `missing`: why something is not there."""

    text: str
    kind: str = "text"


@dataclass
class Lines:
    """A list; style: `problems` or `notes`."""

    lines: Sequence[str]
    style: str = "notes"
    kind: ClassVar[str] = "lines"


@dataclass
class Source:
    """Preformatted text, folded away."""

    title: str
    text: str
    kind: ClassVar[str] = "source"


@dataclass
class FindingBlock:
    """A verdict, and what is behind it."""

    name: str
    statement: str
    verdict: str
    results: list[dict[str, Any]]
    compared: bool  # otherwise the results say only why not
    kind: ClassVar[str] = "finding"


@dataclass
class TableBlock:
    """A sortable table. Rows about a game or a label are hidden with it."""

    name: str  # of its CSV file
    title: str
    frame: pd.DataFrame
    caption: str = ""
    folded: bool = False
    behind: dict[str, pd.DataFrame] = field(default_factory=dict)  # more CSV files, too long to be shown
    files: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "table"

    @property
    def heads(self) -> list[dict[str, Any]]:
        """Of the columns."""
        return [{"text": str(name), "number": self._numeric(name)} for name in self.frame.columns]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Cells with what they show and, for numbers, what they are sorted by."""
        numeric = [self._numeric(name) for name in self.frame.columns]
        rows = []
        for values in self.frame.itertuples(index=False, name=None):
            cells = [_cell(value, number) for value, number in zip(values, numeric, strict=True)]
            row = dict(zip(self.frame.columns, values, strict=True))
            rows.append({"cells": cells, "env": row.get("game"), "label": row.get("label")})
        return rows

    def _numeric(self, name: Any) -> bool:
        return bool(pd.api.types.is_numeric_dtype(self.frame[name]))


@dataclass
class ChartRow:
    """Charts side by side."""

    title: str
    charts: list[Chart]


@dataclass
class FigureBlock:
    """Charts that belong together; `picture`: of one that is not interactive."""

    name: str
    title: str
    caption: str
    rows: list[ChartRow]
    commands: Sequence[str] = ()
    files: list[str] = field(default_factory=list)
    picture: str = ""
    kind: ClassVar[str] = "figure"


Block = Text | Lines | Source | FindingBlock | TableBlock | FigureBlock


@dataclass
class Section:
    """A heading, and what is below it."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def render(title: str, subtitle: str, sections: Sequence[Section], styles: Mapping[str, Style], envs: Sequence[str],
           command: str) -> str:  # fmt: skip
    """The whole page. The same input gives the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    charts = [
        chart
        for section in sections
        for block in section.blocks
        if isinstance(block, FigureBlock)
        for row in block.rows
        for chart in row.charts
    ]
    for number, chart in enumerate(charts):
        chart.number = number
    drawn = [{"x": c.x, "y": c.y, "of": c.of, "kind": c.kind, "series": c.series, "cited": c.cited} for c in charts]
    library, script = get_plotlyjs(), (WEB / "page.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = [{**look, "name": styles[look["label"]].name} for look in looks(styles)]
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        looks=shown,
        envs=envs,
        cited=any(chart.cited for chart in charts),
        command=command,
        policy=_policy(library, script),
        css=Markup((WEB / "page.css").read_text()),
        library=Markup(library),
        script=Markup(script),
        data=Markup(as_script_data({"charts": drawn, "looks": looks(styles)})),
    )


def as_script_data(data: Any) -> str:
    """JSON that cannot end the script element it stands in, nor begin another or a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def picture(path: Path) -> str:
    """An SVG file inside the page, as an image: nothing in it can run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _policy(*scripts: str) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    # plotly sets styles as it draws, and makes the pictures that a reader saves.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _cell(value: Any, number: bool) -> dict[str, Any]:
    if not number or isinstance(value, bool | np.bool_):
        return {"text": "" if value is None else str(value), "number": None}
    if pd.isna(value):
        return {"text": "", "number": None}
    return {"text": shown_number(float(value)), "number": f"{value:.10g}"}


def shown_number(value: float) -> str:
    """Four digits, thousands apart."""
    if (value == int(value) and abs(value) < 1e15) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
