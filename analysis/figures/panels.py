"""What all figures share: sizes, grids of panels, curves with spread and gaps, legends, and files.

Panels are placed in inches, because letting matplotlib measure and move them (layout="constrained") takes as long as
drawing itself. `matplotlib` is imported where a figure is drawn.
"""

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from . import form as forms
from .form import Form
from .palette import Looks, Style
from .scales import LOG_PART, Scale
from .tables import AVERAGE, Curve, game_name, need

PAGE, COLUMN = 7.0, 3.4  # inches: the width of a page's text, and of one of its two columns
FONT = 7.0  # points
INCH = 72  # points
LEFT, RIGHT, BOTTOM, TOP = 0.5, 0.16, 0.36, 0.2  # margins around the panels, in inches
GAP_X, GAP_Y = 0.42, 0.34
LINE = 0.133  # of text
LEAST_PANEL = 0.4  # inches
LETTER = 0.062  # the width of a title's letter on average
MARKERS_PER_CURVE = 6
SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "meanq",  # the same picture, the same bytes
    "pdf.fonttype": 42,  # letters as letters, which publishers ask for
    "text.parse_math": False,  # a label may have a dollar sign in it
    "font.size": FONT,
    "axes.titlesize": FONT + 0.5,
    "axes.labelpad": 2.0,
    "axes.titlepad": 3.0,
    "axes.titlelocation": "left",
    "figure.labelsize": "medium",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelspacing": 0.35,
    "legend.borderpad": 0.2,
    "legend.borderaxespad": 0.1,
    **dict.fromkeys([f"{which}tick.major.{what}" for which in "xy" for what in ("pad", "size")], 2.0),
    **dict.fromkeys(["xtick.major.width", "ytick.major.width"], 0.6),
    "lines.linewidth": 1.3,
    "lines.markeredgewidth": 0.0,
}


def settings() -> AbstractContextManager[None]:
    """Context with matplotlib's settings of our figures."""
    return matplotlib.rc_context(SETTINGS)  # type: ignore[arg-type]


def columns_for(count: int) -> int:
    """Columns for `count` panels: one row up to 4, then 3 or 4, whichever leaves fewer places empty."""
    return count if count <= 4 else min((4, 3) if count < 10 else (4,), key=lambda columns: -count % columns)


def sheet(
    count: int,
    columns: int,
    legend: Sequence[Style] = (),
    titles: Sequence[str] = (),
    *,
    height: float | None = None,
    left: float = LEFT,
    panel_width: float | None = None,
    form: Form = forms.DEFAULT,
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels below its legend; `titles`: of the first panels; sizes in inches."""
    gaps = left + RIGHT + GAP_X * (columns - 1)
    if panel_width is None or form.width:
        panel_width = ((form.width or (PAGE if columns > 1 else COLUMN)) - gaps) / columns
    least = gaps + LEAST_PANEL * columns
    need(panel_width > LEAST_PANEL, f"--size: {columns} panels side by side need a width above {least:.1f} inches")
    width, rows = gaps + columns * panel_width, -(-count // columns)
    wrapped = [textwrap.fill(title, int((panel_width + RIGHT) / LETTER)) for title in titles]
    title_height = TOP + LINE * max((title.count("\n") for title in wrapped), default=0)
    gap_y = GAP_Y + title_height - TOP
    lines = -(-len(legend) // _fitting([style.name for style in legend], width))
    top = title_height + LINE * lines
    height = height or min(max(0.72 * panel_width, 0.95), 1.9)
    if form.height:
        others = top + (rows - 1) * gap_y + BOTTOM
        height = (form.height - others) / rows
        least = others + LEAST_PANEL * rows
        need(height > LEAST_PANEL, f"--size: {rows} rows of panels need a height above {least:.1f} inches")
    total = top + rows * height + (rows - 1) * gap_y + BOTTOM
    figure = Figure((width, total))
    if legend:
        side_by_side = -(-len(legend) // lines)
        by_rows = [style for i in range(side_by_side) for style in legend[i::side_by_side]]  # filled by columns
        handles = [Line2D([], [], label=style.name, **look(style)) for style in by_rows]
        figure.legend(handles=handles, loc="upper center", ncols=side_by_side)
    place = {"left": left / width, "right": 1 - RIGHT / width, "bottom": BOTTOM / total, "top": 1 - top / total}
    place |= {"wspace": GAP_X / panel_width, "hspace": gap_y / height}
    axes = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=place).flat)
    for axis in axes[count:]:
        axis.remove()
    for axis, title in zip(axes, wrapped, strict=False):
        axis.set_title(title)
    return figure, axes[:count]


def _fitting(names: Sequence[str], width: float) -> int:
    """How many columns of a legend with these names fit into a width, in inches."""
    handle = (2.6 + 0.8 + 2.0) * FONT / INCH  # with the space to its name, and to the next column
    widths = [text_width(name) + handle for name in names]
    fits = (n for n in range(len(names), 1, -1) if sum(max(widths[i::n]) for i in range(n)) <= width)
    return next(fits, 1)


def metric_grid(
    titles: Mapping[str, str], envs: Sequence[str], looks: Looks, x_name: str, form: Form = forms.DEFAULT
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """The axes by metric and game: a row per metric and a column per game; of a single game, metrics side by side."""
    places = [(metric, env) for metric in titles for env in envs]
    legend = list(looks.values())
    if len(envs) == 1:
        columns = min(len(places), 3 if len(places) > 4 else 2)
        figure, axes = sheet(len(places), columns, legend, list(titles.values()), height=1.4, form=form)
        x_name += ", average over games" if envs[0] == AVERAGE else f" in {game_name(envs[0])}"
    else:
        figure, axes = sheet(len(places), len(envs), legend, [column_title(env) for env in envs], form=form)
        for axis, title in zip(axes[:: len(envs)], titles.values(), strict=True):
            axis.set_ylabel(title)
    figure.supxlabel(x_name, y=0)
    return figure, dict(zip(places, axes, strict=True))


def column_title(env: str) -> str:
    """The name of a game; that of the average says that returns in it are normalised."""
    return "Average, return normalised" if env == AVERAGE else game_name(env)


def text_width(text: str) -> float:
    """Width in inches, with a margin because text is wider in a PNG."""
    return 1.07 * float(TextPath((0, 0), text, size=FONT).get_extents().width) / INCH if text.strip() else 0.0


def look(style: Style, large: bool = False) -> dict[str, Any]:
    """The line and marker of a style, as matplotlib wants them."""
    size = (4.5 if large else 3.4) * (1.6 if style.marker == "*" else 1)  # a star's area is small
    dash = (0, style.dash) if style.dash else "-"
    return {"color": style.colour, "linestyle": dash, "marker": style.marker, "markersize": size}


def band(style: Style) -> dict[str, Any]:
    """The band around a line, for matplotlib's fill_between."""
    return {"color": style.colour, "alpha": 0.14, "linewidth": 0}


def compact(value: float, _: object = None) -> str:
    """A short label for a tick: 0.05, 7, 2.5K, 1M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{round(value, 12) + 0:.4g}"


def ticks(axis: Axis, count: int = 4) -> None:
    """Place roughly `count` ticks with compact labels; on a logarithmic axis, at powers of ten or in between."""
    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high > 4 * low:
        between = (1, 2, 5) if high < 30 * low else (1, 3) if high < 300 * low else (1,)
        axis.set_major_locator(LogLocator(subs=between))
    else:
        axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(compact)


def write_note(axis: Axes, note: str) -> None:
    """Write at the right above a panel."""
    axis.set_title(note, loc="right", fontsize=6, color="#555555", pad=1)


def write_inside(axis: Axes, why: str) -> None:
    """Say in the middle of a panel why there is nothing in it."""
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color="#555555")
    axis.grid(visible=False)
    axis.set_yticks([])


def draw_zero(axis: Axes) -> None:
    """A line at zero, if that is inside of the axes."""
    if axis.get_ylim()[0] < 0 < axis.get_ylim()[1]:
        axis.axhline(0, color="#999999", linewidth=0.6, zorder=1)


def draw_curves(axis: Axes, curves: Sequence[tuple[Style, Curve]], form: Form = forms.DEFAULT) -> None:
    """Means with gaps where they are NaN, the last one on top; with their bands, over the faded runs."""
    for style, curve in curves:
        if form.single_runs:
            faint = LineCollection(list(curve.runs.values()), colors=style.colour, linewidths=0.5, alpha=0.25)
            axis.add_collection(faint, autolim=False)
        if form.has_band:
            axis.fill_between(curve.steps, curve.mean - curve.spread, curve.mean + curve.spread, **band(style))
    for i, (style, curve) in enumerate(curves):
        axis.plot(curve.steps, curve.mean, **look(style), markevery=_marked(curve.mean, shift=i))


def _marked(mean: np.ndarray, shift: int) -> list[int]:
    """Indices of markers: spread out, shifted from curve to curve, and every point without a neighbour."""
    finite = np.isfinite(mean)
    every = max(1, -(-len(mean) // MARKERS_PER_CURVE))
    chosen = np.arange(len(mean)) % every == shift % every
    joined = np.append(finite[1:], False) | np.append(False, finite[:-1])
    return np.flatnonzero(finite & (chosen | ~joined)).tolist()


def apply_scale(axis: Axes, scale: Scale, which: str = "y") -> None:
    """Set the y axis, or the x axis, to a scale; a note above the panel says where it is folded."""
    scaled: Axis = getattr(axis, f"{which}axis")
    set_scale = axis.set_yscale if which == "y" else axis.set_xscale
    if scale.kind == "log":
        set_scale("log")
    low, high = (scale.bottom, scale.top) if scale.kind == "folded" else (scale.low, scale.high)
    axis.set(**{f"{which}lim": (low, high)})
    ticks(scaled)
    if scale.kind == "folded":
        inside = [tick for tick in scaled.get_ticklocs() if low <= tick <= high]
        stretch = 0.9 * (1 / LOG_PART - 1) * scale.decades * scale.edge / (high - low)  # of matplotlib's decades
        set_scale("symlog", linthresh=scale.edge, linscale=stretch)
        scaled.set_ticks([*inside, *scale.beyond])
        scaled.set_minor_locator(NullLocator())
        axis.set(**{f"{which}lim": (scale.low, scale.high)})
        scaled.set_major_formatter(compact)
        write_note(axis, f"log beyond {compact(float(f'{scale.edge:.2g}'))}")
