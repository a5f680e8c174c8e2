"""Figures with a row per metric and a column per game; of a single game, its metrics side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.figures.palette import Style
from analysis.figures.panels import Sheet, write_note
from analysis.figures.tables import AVERAGE, game_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_GAMES = 5  # columns; more are too narrow to be read


class MetricGrid:
    """The panels of a figure, their titles and the names of their axes."""

    def __init__(
        self,
        titles: Mapping[str, str],
        envs: Sequence[str],
        looks: Mapping[str, Style],
        x_name: str,
        *,
        columns: int,
        height: float,
        ticks_on_each_row: bool = False,
    ) -> None:
        """titles: by metric; looks: those of the legend. Of a single game: columns, height in inches, and ticks."""
        self.titles, self._x_name, self._single = titles, x_name, len(envs) == 1
        self._all_ticks = self._single and ticks_on_each_row
        legend = [(style, style.name) for style in looks.values()]
        if self._single:
            self.places = {(metric, envs[0]): divmod(i, columns) for i, metric in enumerate(titles)}
            self.sheet = Sheet(-(-len(titles) // columns), columns, legend, height=height)
        else:
            self.places = {(metric, env): (i, j) for i, metric in enumerate(titles) for j, env in enumerate(envs)}
            games = [_column_title(env) for env in envs]
            self.sheet = Sheet(len(titles), len(envs), legend, titles=games, titles_above="first row")

    def panels(self) -> Iterator[tuple[str, str, Axes]]:
        """Metric, game and axes of each place, with the axes named once the caller has drawn into them."""
        lowest: dict[int, int] = {}
        for row, column in self.places.values():
            lowest[column] = max(row, lowest.get(column, 0))
        for (metric, env), (row, column) in self.places.items():
            axis = self.sheet.panel(row, column)
            yield metric, env, axis
            if not self._single and row == 0:
                axis.set_title(self.sheet.titles[_column_title(env)])
            if not self._single and column == 0:
                axis.set_ylabel(self.titles[metric])
            if row == lowest[column]:
                axis.set_xlabel(self._x_name + self._where(env))
            elif not self._all_ticks:
                axis.tick_params(labelbottom=False)

    def entitle(self, axis: Axes, title: str, note: str = "") -> None:
        """Write a note at the right above the panel; of a single game, what the panel shows at the left."""
        if self._single:
            axis.set_title(title, loc="left")
        if note:
            write_note(axis, note, pad=None if self._single else 1)

    def _where(self, env: str) -> str:
        if not self._single:
            return ""
        return f" in {game_name(env)}" if env != AVERAGE else ", average over games"


def _column_title(env: str) -> str:
    return game_name(env) if env != AVERAGE else "Average"
