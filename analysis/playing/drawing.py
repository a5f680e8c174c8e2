"""Draws one image of a video: the game, what the agent values, and how that compares with what it then collects.

title
game        numbers; Q of every member by action
value over the episode, the return that followed, and where we are
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from meanq.metrics.definitions import state_value

if TYPE_CHECKING:
    from .player import Played

SIZE = (960, 720)  # even, as H.264 wants it
VALUE, REALISED, TRUE = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's blue, vermillion and green
BAND, MEMBER = "#bcdcf0", "#56b4e9"  # lighter, for single members
TEXT, LINE, CHOSEN = "#202020", "#c8c8c8", "#f0f0f0"
# Channels of a grid on black, most important hues first; neighbours differ in lightness as well as in hue.
CHANNELS = (
    *("#56b4e9", "#ffffff", "#999999", "#d55e00", "#f0e442", "#009e73", "#cc79a7", "#0072b2", "#e69f00", "#b2df8a"),
)


class Page:
    """Draws the images of an episode's first `shown` steps.

    What does not move is drawn once; each image adds the rest to a copy of it.
    """

    def __init__(
        self, title: str, actions: Sequence[str], played: "Played", shown: int, first_picture: np.ndarray
    ) -> None:
        self._played, self._shown = played, slice(0, shown)
        self._values = state_value(played.q[self._shown])
        self._advantages = played.q[self._shown] - self._values[:, None, None]
        self._figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100)
        self._canvas = FigureCanvasAgg(self._figure)
        self._figure.text(16 / SIZE[0], 1 - 28 / SIZE[1], title, fontsize=12, color=TEXT)
        game = self._add_axes(16, 44, 436, 464)
        game.axis("off")
        self._game = game.imshow(first_picture)
        self._texts = [
            self._figure.text(x / SIZE[0], 1 - y / SIZE[1], "", fontsize=12, color=colour)
            for x, y, colour in zip(
                (464, 704, 464, 604, 820), (60, 60, 88, 88, 88), (TEXT, TEXT, VALUE, REALISED, TEXT), strict=True
            )
        ]
        moving = [self._game, *self._texts, *self._draw_actions(actions), *self._draw_curves()]
        for artist in moving:
            artist.set_animated(True)  # left out of the background
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(self._figure.bbox)
        self._moving = moving

    def draw(self, t: int, picture: np.ndarray) -> np.ndarray:
        """Draw RGB [height, width, 3] while the action of step t is carried out; after the end, t is the length."""
        played, now = self._played, min(t, len(self._values) - 1)
        value, realised, q = self._values[now], played.realised[now], self._advantages[now]
        self._game.set_data(picture)
        texts = (
            f"step {t:,} of {len(played.actions):,}",
            f"return {played.rewards[:t].sum():.6g}",
            f"V(s)  {value:.3g}",
            f"then collected  {realised:.3g}",
            f"bias  {value - realised:+.3g}",
        )
        for place, text in zip(self._texts, texts, strict=True):
            place.set_text(text)
        self._chosen.set_y(played.actions[now] - 0.5)
        rows = np.arange(q.shape[1])
        self._means.set_data(q.mean(0), rows)
        self._members.set_data(q.ravel(), np.tile(rows, len(q)))
        self._cursor.set_xdata([now, now])
        self._value_now.set_data([now], [value])
        self._realised_now.set_data([now], [realised])
        self._canvas.restore_region(self._background)
        for artist in self._moving:
            self._figure.draw_artist(artist)
        return np.array(self._canvas.buffer_rgba())[..., :3]

    def _add_axes(self, left: int, top: int, right: int, bottom: int) -> Axes:
        """Add axes at these pixels."""
        width, height = SIZE
        return self._figure.add_axes(
            (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height)
        )

    def _draw_actions(self, actions: Sequence[str]) -> list[Artist]:
        """A row per action: the members' values as dots, their mean as a line. Returns what moves."""
        axes = self._add_axes(572, 132, 944, 436)
        members = self._played.q.shape[1]
        axes.set_title(f"Q(s, a) - V(s) of {members} member{'s; line: their mean' if members > 1 else ''}", fontsize=10)
        axes.set_yticks(range(len(actions)), actions, fontsize=min(10, 140 / len(actions)))
        axes.set_ylim(len(actions) - 0.5, -0.5)
        low, high = _padded(self._advantages)
        axes.set_xlim(low, high)
        axes.locator_params(axis="x", nbins=5)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        (self._chosen,) = axes.barh(0, high - low, 1, low, color=CHOSEN)
        zero = axes.axvline(0, color=LINE, linewidth=1)
        size = min(9, 120 / len(actions))
        (self._members,) = axes.plot([], [], "o", color=VALUE, markerfacecolor=MEMBER, markersize=size)
        (self._means,) = axes.plot([], [], "|", color=VALUE, markersize=2 * size, markeredgewidth=2)
        return [self._chosen, zero, self._means, self._members]

    def _draw_curves(self) -> list[Artist]:
        """Values over the episode, and the return that followed. Returns what moves."""
        axes, played, shown = self._add_axes(76, 508, 944, 690), self._played, self._shown
        chosen = np.take_along_axis(played.q, played.actions[:, None, None], 2)[shown, :, 0]  # [T, K]
        steps = np.arange(len(chosen))
        curves = [
            (self._values, VALUE, "value V(s)"),
            (played.realised[shown], REALISED, "discounted return that followed"),
            (played.true_values[shown], TRUE, "true optimal value"),
        ]
        curves = curves if len(played.true_values) else curves[:2]
        for values, colour, label in curves:
            axes.plot(steps, values, color=colour, linewidth=1.5, label=label)
        if chosen.shape[1] > 1:
            axes.fill_between(steps, chosen.min(1), chosen.max(1), color=BAND, label="members' range")
        axes.set_ylim(*_padded(np.concatenate([chosen.ravel(), *(values for values, _, _ in curves)])))
        axes.set_xlim(0, max(1, len(steps) - 1))
        axes.locator_params(axis="x", integer=True)
        axes.locator_params(axis="y", nbins=4)
        axes.grid(axis="y", color=LINE, linewidth=0.5)
        axes.spines[:].set_visible(False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=10, borderpad=0)
        self._cursor = axes.axvline(0, color=TEXT, linewidth=1, clip_on=False)
        (self._realised_now,) = axes.plot([], [], "o", color=REALISED, clip_on=False)
        (self._value_now,) = axes.plot([], [], "o", color=VALUE, clip_on=False)
        return [self._cursor, self._realised_now, self._value_now]


def draw_frame(frame: np.ndarray, scale: float) -> np.ndarray:
    """RGB of an observation without a picture: pixels, channels of a grid in colours, or a row of coloured numbers."""
    if frame.ndim == 1:  # from blue for negative numbers over grey for 0 to red
        return matplotlib.colormaps["coolwarm"](0.5 + np.tanh(frame) / 2, bytes=True)[None, :, :3]
    if scale != 1:  # an image: grey, or in colours
        pixels = np.moveaxis(frame, 0, -1)
        return pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    picture = np.zeros((*frame.shape[1:], 3))
    for channel, content in enumerate(frame):  # later channels lie on top
        picture[content > 0] = to_rgb(CHANNELS[channel % len(CHANNELS)])
    return picture


def _padded(numbers: np.ndarray) -> tuple[float, float]:
    """A range that holds all numbers, with a little room."""
    low, high = float(numbers.min()), float(numbers.max())
    room = 0.05 * (high - low) or max(0.5, 0.05 * abs(high))
    return low - room, high + room
