"""What all figures share: sizes, axes placed by hand, curves with spread and gaps, legends, and files.

Axes are placed in inches and tick labels are kept short, so nothing has to be measured and moved until it fits: that
is what makes drawing slow. `matplotlib` is imported where a figure is drawn.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.palette import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.figures.tables import Curve

PAGE, COLUMN = 7.0, 3.4  # inches: the width of a page's text, and of one of its two columns
FONT = 7.0  # points
INCH = 72  # points
LEFT, RIGHT, BOTTOM, TOP = 0.5, 0.16, 0.36, 0.2  # margins around the panels, in inches
GAP_X, GAP_Y = 0.42, 0.34
LEGEND_LINE, TITLE_LINE = 0.133, 0.125
MARKERS_PER_CURVE = 6
FAR = 8  # times as large as the median curve: one that would hide most others, were the axis linear throughout
SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "meanq",  # the same picture, the same bytes
    "text.parse_math": False,  # a label may have a dollar sign in it
    "font.size": FONT,
    "axes.titlesize": FONT + 0.5,
    "axes.labelsize": FONT,
    "axes.labelpad": 2.0,
    "axes.titlepad": 3.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#E4E4E4",
    "legend.fontsize": FONT,
    "legend.frameon": False,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.4,
    "lines.markeredgewidth": 0.0,
}


def settings() -> AbstractContextManager[None]:
    """Context with matplotlib's settings of our figures."""
    import matplotlib

    return matplotlib.rc_context(SETTINGS)  # type: ignore[arg-type]


def grid_shape(count: int) -> tuple[int, int]:
    """Rows and columns for `count` panels: one row up to 5, then the columns that leave the fewest places empty."""
    if count <= 5:
        return 1, count
    columns = min((5, 4, 3) if count < 10 else (5, 4), key=lambda columns: -count % columns)
    return -(-count // columns), columns


class Sheet:
    """A figure with a grid of places for panels below its legends; `panel` makes the axes of a place."""

    def __init__(
        self,
        rows: int,
        columns: int,
        *legends: Sequence[tuple[Style, str]],
        height: float | None = None,
        left: float = LEFT,
        panel_width: float | None = None,
        titles: Sequence[str] = (),
        titles_above: str = "each row",
    ) -> None:
        """Sizes in inches; `titles`: those that panels will have; `titles_above`: each row, or the first row only."""
        from matplotlib.figure import Figure

        self.rows, self.columns = rows, columns
        self.width = PAGE if columns > 1 else COLUMN
        self.left = left
        if panel_width is not None:
            self.width = left + RIGHT + columns * panel_width + GAP_X * (columns - 1)
        self.panel_width = (self.width - left - RIGHT - GAP_X * (columns - 1)) / columns
        self.panel_height = height if height is not None else min(max(0.72 * self.panel_width, 0.95), 1.9)
        self.titles = {title: self._wrapped(title) for title in titles}
        extra = TITLE_LINE if any("\n" in title for title in self.titles.values()) else 0.0
        self.gap_y = GAP_Y + extra if titles_above == "each row" else GAP_Y / 2
        fitted = [_fit_legend(legend, self.width - 0.1) for legend in legends if legend]
        lines = [-(-len(entries) // side_by_side) for entries, side_by_side in fitted]
        self.top = TOP + extra + (LEGEND_LINE * sum(lines) + 0.06 if lines else 0)
        self.height = self.top + rows * self.panel_height + (rows - 1) * self.gap_y + BOTTOM
        self.figure: Figure = Figure(figsize=(self.width, self.height))
        for i, (entries, side_by_side) in enumerate(fitted):
            self._add_legend(entries, side_by_side, 0.03 + LEGEND_LINE * sum(lines[:i]))

    def panel(self, row: int, column: int) -> Axes:
        """The axes of this place."""
        x = self.left + column * (self.panel_width + GAP_X)
        y = self.height - self.top - self.panel_height - row * (self.panel_height + self.gap_y)
        size = self.panel_width / self.width, self.panel_height / self.height
        return self.figure.add_axes((x / self.width, y / self.height, *size))

    def _wrapped(self, title: str) -> str:
        """In two lines where it would run into the next one, or out of the figure."""
        room = self.panel_width + (GAP_X if self.columns < 2 else 2 * min(GAP_X / 2, RIGHT)) - 0.06
        spaces = [i for i, letter in enumerate(title) if letter == " "]
        if not spaces or text_width(title, FONT + 0.5) <= room:
            return title
        middle = min(spaces, key=lambda i: abs(i - len(title) / 2))
        return f"{title[:middle]}\n{title[middle + 1 :]}"

    def _add_legend(self, entries: Sequence[tuple[Style, str]], columns: int, down: float) -> None:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], **look(style)) for style, _ in entries]
        self.figure.legend(
            handles,
            [name for _, name in entries],
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - down / self.height),
            ncols=columns,
            borderpad=0,
            borderaxespad=0,
            handlelength=2.6,
            columnspacing=1.4,
            handletextpad=0.5,
            labelspacing=0.35,
        )


def text_width(text: str, size: float = FONT) -> float:
    """Width in inches, with a margin because text is wider in a PNG."""
    from matplotlib.textpath import TextPath

    return 1.07 * float(TextPath((0, 0), text, size=size).get_extents().width) / INCH if text.strip() else 0.0


def _fit_legend(entries: Sequence[tuple[Style, str]], width: float) -> tuple[list[tuple[Style, str]], int]:
    """The entries so ordered that they read by rows, though a legend is filled by columns; and how many columns."""
    names = [text_width(name) for _, name in entries]
    columns = len(entries)
    methods = Counter(name.partition(" (")[0] for _, name in entries)
    if 1 < len(methods) < columns and len(set(methods.values())) == 1:  # a column for each, with its overrides below
        by_method = [width for i in range(columns // len(methods)) for width in names[i :: columns // len(methods)]]
        if _legend_width(by_method, len(methods)) <= width:
            return list(entries), len(methods)
    while columns > 1 and _legend_width(names, columns) > width:
        columns -= 1
    if columns:  # as many lines with more even columns
        columns = -(-len(entries) // -(-len(entries) // columns))
    return [entry for i in range(columns) for entry in entries[i::columns]], max(columns, 1)


def _legend_width(names: Sequence[float], columns: int) -> float:
    widest = [max(names[i::columns]) for i in range(columns)]
    return sum(widest) + columns * (2.6 + 0.5) * FONT / INCH + (columns - 1) * 1.4 * FONT / INCH


def look(style: Style) -> dict[str, Any]:
    """A style as matplotlib wants it."""
    return {
        "color": style.colour,
        "linestyle": (0, style.dash) if style.dash else "-",
        "marker": style.marker,
        "markersize": SETTINGS["lines.markersize"] * (1.7 if style.marker == "*" else 1),  # a star's area is small
    }


def compact(value: float, _: object = None) -> str:
    """A short label for a tick: 1e-4, 0.05, 7, 2.5K, 1M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    if 1e-12 < abs(value) < 1e-3:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"


def ticks(axis: Axes, x: int = 4, y: int = 4) -> None:
    """Place roughly `x` and `y` ticks with compact labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for which, count in ((axis.xaxis, x), (axis.yaxis, y)):
        low, high = which.get_view_interval()
        if which.get_scale() == "log" and high > 4 * low:
            fine = (1, 2, 5) if high < 30 * low else (1, 3) if high < 300 * low else (1,)
            which.set_major_locator(LogLocator(subs=fine, numticks=99 if high < 1e4 * low else count))
            which.set_minor_locator(NullLocator())
        else:
            which.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
            which.set_minor_locator(NullLocator())
        which.set_major_formatter(FuncFormatter(compact))


def write_note(axis: Axes, note: str, pad: float | None = None) -> None:
    """Write at the right above a panel."""
    axis.set_title(note, loc="right", fontsize=6, color="#555555", pad=pad)


def write_inside(axis: Axes, why: str) -> None:
    """Say in the middle of a panel why there is nothing in it."""
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color="#555555")
    axis.set_yticks([])


def draw_curves(axis: Axes, curves: Sequence[tuple[Style, Curve]], spread: bool = True) -> None:
    """Means with gaps where they are NaN, the last one on top; with their spread, over the faded runs."""
    from matplotlib.collections import LineCollection

    faint = curves if spread else []
    runs = [(style.colour, run) for style, curve in faint for run in curve.runs.values()]
    if runs:
        colours, lines = zip(*runs, strict=True)
        axis.add_collection(LineCollection(lines, colors=colours, linewidths=0.5, alpha=0.25), autolim=False)
    draw_bands(axis, [(style, c.steps, c.mean - c.spread, c.mean + c.spread) for style, c in faint])
    for i, (style, curve) in enumerate(curves):
        axis.plot(curve.steps, curve.mean, **look(style), markevery=_marked(curve.mean, shift=i))


def draw_bands(axis: Axes, bands: Sequence[tuple[Style, np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """From low to high over x, interrupted where one is NaN; all at once, since each collection takes its time."""
    from matplotlib.collections import PolyCollection

    colours, shapes = [], []
    for style, x, low, high in bands:
        finite = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
        for part in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
            if len(part) > 1:
                there, back = np.column_stack([x, low])[part], np.column_stack([x, high])[part[::-1]]
                shapes.append(np.concatenate([there, back]))
                colours.append(style.colour)
    if shapes:
        axis.add_collection(PolyCollection(shapes, facecolors=colours, alpha=0.14, linewidths=0), autolim=False)


def _marked(mean: np.ndarray, shift: int) -> list[int]:
    """Indices of markers: spread out, shifted from curve to curve, and every point without a neighbour."""
    finite = np.isfinite(mean)
    every = max(1, -(-len(mean) // MARKERS_PER_CURVE))
    chosen = np.arange(len(mean)) % every == shift % every
    joined = np.append(finite[1:], False) | np.append(False, finite[:-1])
    return np.flatnonzero(finite & (chosen | ~joined)).tolist()


def limits(ranges: Mapping[str, tuple[float, float]], find_far: bool = False) -> tuple[tuple[float, float], list[str]]:
    """The range of an axis from the range of each curve, without those that are far out; and which these are.

    Far out are fewer than half of the curves at most, so where half of them are large the axis stays linear: they are
    not exceptions, and the difference between large and small is what there is to see.
    """
    sizes = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
    median = np.median(list(sizes.values()))
    far = [name for name, size in sizes.items() if find_far and size > FAR * median > 0]
    kept = [ranges[name] for name in ranges if name not in far]
    low, high = min(low for low, _ in kept), max(high for _, high in kept)
    size = max(high - low, 0.1 * max(abs(low), abs(high))) or 1  # what hardly changes is not blown up
    low, high = (low + high - size) / 2, (low + high + size) / 2
    return (low - 0.04 * size, high + 0.04 * size), far


def fold(axis: Axes, near: tuple[float, float], far: Sequence[tuple[float, float]]) -> float:
    """Linear as far as the near curves go, logarithmic beyond, so that the far ones are seen too; from where on."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    edge = max(map(abs, near))
    low = min(near[0], *(1.15 * start for start, _ in far))
    high = max(near[1], *(1.15 * end for _, end in far))
    decades = sum(float(np.log10(max(abs(end), edge) / edge)) for end in (low, high))
    bottom, top = max(low, -edge), min(high, edge)
    axis.set_yscale("symlog", linthresh=edge, linscale=0.9 * 2 * decades * edge / (top - bottom))  # two thirds linear
    axis.set_ylim(low, high)
    inside = [tick for tick in MaxNLocator(3).tick_values(bottom, top) if bottom <= tick <= top]
    every = -(-decades // 3)  # about so many powers of ten
    powers = [10.0**n for n in range(-12, 99) if 10.0**n > 1.5 * edge and n % every == 0]
    beyond = [tick for power in powers for tick in (-power, power) if low <= tick <= high]
    axis.yaxis.set_major_locator(FixedLocator([*inside, *beyond]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(compact))
    for level in (edge, -edge):
        if low < level < high:
            axis.axhline(level, color="#999999", linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
    return edge


def save(figure: Figure, stem: Path, title: str, caption: str, png: bool = True) -> None:
    """As SVG and PNG; the caption travels with them."""
    about = {"Title": title, "Description": caption}
    figure.savefig(stem.with_suffix(".svg"), metadata={**about, "Date": None})
    if png:
        figure.savefig(stem.with_suffix(".png"), dpi=150, metadata=about)


def write_picture(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write the file that --picture names, in the format of its suffix; exit with one line if that fails."""
    about = {".png": {"Software": None}, ".svg": {"Date": None}}.get(path.suffix.lower())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, metadata=about)
    except (OSError, ValueError) as error:  # ValueError: unknown format
        sys.exit(f"analysis: --picture {path}: cannot be written ({error})")
