"""Draws one image of a video: the game, what the agent values, and how that compares with what it then collects.

title
game        numbers; Q of every member by action
value over the episode, the return that followed, and where we are
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from meanq.metrics.definitions import state_value

SIZE = (960, 720)  # even, as H.264 wants it
_GAME = (16, 44, 436, 464)  # left, top, right, bottom
_PANEL = (464, 44, 944, 464)
_CURVE = (64, 508, 944, 690)
_VALUE, _REALISED, _TRUE = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's blue, vermillion and green
_BAND, _MEMBER = "#bcdcf0", "#56b4e9"  # lighter, for single members
_TEXT, _FAINT, _LINE, _PAPER = "#202020", "#707070", "#c8c8c8", "#ffffff"
_CHOSEN = "#f0f0f0"
_FINE = 3  # lines are drawn so many times as large and then reduced: Pillow does not smooth them
# Channels of a grid on black, most important hues first; neighbours differ in lightness as well as in hue.
CHANNELS = (
    *("#56b4e9", "#ffffff", "#999999", "#d55e00", "#f0e442", "#009e73", "#cc79a7", "#0072b2", "#e69f00", "#b2df8a"),
)


@dataclass(frozen=True)
class Story:
    """All that is drawn of one episode, besides the game."""

    title: str
    actions: Sequence[str]  # their names
    taken: np.ndarray  # [T], the action of each step
    q: np.ndarray  # [T, K, A]
    returns: np.ndarray  # [T + 1], undiscounted, before each step and at the end
    realised: np.ndarray  # [T], the discounted return that followed
    true_values: np.ndarray | None  # [T]
    shown: int  # steps in the video, T or less
    complete: bool  # T steps are the whole episode

    @property
    def values(self) -> np.ndarray:
        """V(s_t) = max_a mean_k Q_k(s_t, a)."""
        return state_value(self.q)


class Page:
    """Draws the images of one episode."""

    def __init__(self, story: Story) -> None:
        self._story = story
        shown = slice(0, story.shown)
        self._values = story.values[shown]
        chosen = np.take_along_axis(story.q[shown], story.taken[shown, None, None], 2)[..., 0]  # [t, K]
        self._band = (chosen.min(1), chosen.max(1))
        self._advantages = story.q[shown] - self._values[:, None, None]  # what lies between actions shows at any value
        self._axis_range = _padded([self._advantages])
        truth = () if story.true_values is None else (story.true_values[shown],)
        self._v_range = _padded([*self._band, self._values, story.realised[shown], *truth])
        self._background = self._draw_background()
        self._cached: tuple[int, Image.Image] = (-1, self._background)

    def draw(self, t: int, game: Image.Image) -> Image.Image:
        """The image while the action of step t is carried out; `game` fits its place, see `fit`."""
        if self._cached[0] != t:
            self._cached = (t, self._draw_step(t))
        image = self._cached[1].copy()
        left, top, right, bottom = _GAME
        image.paste(game, (left + (right - left - game.width) // 2, top + (bottom - top - game.height) // 2))
        return image

    def _draw_step(self, t: int) -> Image.Image:
        image = self._background.copy()
        draw = ImageDraw.Draw(image)
        story, (left, top, right, _) = self._story, _PANEL
        over = t == len(story.taken)
        _text(draw, (left, top), f"step {t:,}" + f" of {len(story.taken):,}" * story.complete, 18)
        _text(draw, (left + 240, top), f"return {story.returns[t]:.6g}", 18)
        value, realised = (self._values[0 if over else t], story.realised[0 if over else t])
        _text(draw, (left, top + 32), f"{'V(s0)' if over else 'V(s)'}  {value:.3g}", 18, _VALUE)
        _text(draw, (left + 140, top + 32), f"then collected  {realised:.3g}", 18, _REALISED)
        _text(draw, (right, top + 32), f"bias  {value - realised:+.3g}", 18, anchor="ra")
        if not over:
            self._draw_actions(image, t)
            self._draw_cursor(draw, t)
        return image

    def _draw_actions(self, image: Image.Image, t: int) -> None:
        """A row per action: the members' values as dots, their mean as a line."""
        story, (left, top, right, bottom) = self._story, _PANEL
        first, axis = top + 96, left + 118
        height = min(40.0, (bottom - 20 - first) / len(story.actions))
        size = max(9, min(15, int(height * 0.7)))
        radius = max(2.0, min(5.0, height * 0.22))
        low, high = self._axis_range
        draw = ImageDraw.Draw(image)
        members = f" of {story.q.shape[1]} members; line: their mean" if story.q.shape[1] > 1 else ""
        _text(draw, (left, top + 70), f"Q(s, a) - V(s){members}", 13, _FAINT)
        last = first + height * len(story.actions)
        dots = Image.new("RGB", ((right - axis + 16) * _FINE, (int(last - first) + 1) * _FINE), _PAPER)
        fine = ImageDraw.Draw(dots)

        def x_of(value: float) -> float:
            return (8 + (right - axis) * (value - low) / (high - low)) * _FINE

        for action in range(len(story.actions)):
            y0, y1 = height * action * _FINE, height * (action + 1) * _FINE
            if action == story.taken[t]:
                fine.rectangle((0, y0, dots.width, y1), fill=_CHOSEN)
                draw.rectangle((left, first + height * action, axis - 8, first + height * (action + 1)), fill=_CHOSEN)
            _text(
                draw,
                (left + 4, first + height * (action + 0.5)),
                story.actions[action],
                size,
                _TEXT if action == story.taken[t] else _FAINT,
                anchor="lm",
            )
        fine.line((x_of(0), 0, x_of(0), dots.height), fill=_LINE, width=_FINE)
        for action in range(len(story.actions)):
            middle, half = height * (action + 0.5) * _FINE, height * 0.38 * _FINE
            mean = x_of(self._advantages[t, :, action].mean())
            fine.line((mean, middle - half, mean, middle + half), fill=_VALUE, width=2 * _FINE)
            if story.q.shape[1] > 1:
                for value in self._advantages[t, :, action]:
                    x, r = x_of(value), radius * _FINE
                    fine.ellipse((x - r, middle - r, x + r, middle + r), fill=_MEMBER, outline=_VALUE, width=_FINE)
        image.paste(dots.reduce(_FINE), (axis - 8, first))
        for x, value, anchor in ((axis, low, "la"), (right, high, "ra")):
            _text(draw, (x, last + 3), f"{value:+.3g}", 12, _FAINT, anchor=anchor)

    def _draw_cursor(self, draw: ImageDraw.ImageDraw, t: int) -> None:
        _, top, _, bottom = _CURVE
        x = self._x(t)
        draw.line((x, top, x, bottom), fill=_TEXT, width=1)
        for value, colour in ((self._story.realised[t], _REALISED), (self._values[t], _VALUE)):
            y = self._y(value)
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=colour)

    def _draw_background(self) -> Image.Image:
        story = self._story
        left, top, right, bottom = _CURVE
        fine = Image.new("RGB", (SIZE[0] * _FINE, SIZE[1] * _FINE), _PAPER)
        draw = ImageDraw.Draw(fine)

        def points(values: np.ndarray) -> list[tuple[float, float]]:
            return [(self._x(t) * _FINE, self._y(value) * _FINE) for t, value in enumerate(values)]

        for value in _ticks(*self._v_range):
            draw.line([(left * _FINE, self._y(value) * _FINE), (right * _FINE, self._y(value) * _FINE)], _LINE, 1)
        if len(self._values) > 1:
            draw.polygon(points(self._band[0]) + points(self._band[1])[::-1], fill=_BAND)
            curves = [(story.realised[: story.shown], _REALISED), (self._values, _VALUE)]
            if story.true_values is not None:
                curves.insert(0, (story.true_values[: story.shown], _TRUE))
            for values, colour in curves:
                draw.line(points(values), fill=colour, width=2 * _FINE, joint="curve")
        image = fine.reduce(_FINE)
        draw = ImageDraw.Draw(image)
        _text(draw, (16, 14), _shortened(story.title, 17, SIZE[0] - 32), 17)
        for value in _ticks(*self._v_range):
            _text(draw, (left - 6, self._y(value)), f"{value:g}", 12, _FAINT, anchor="rm")
        _text(draw, (left, bottom + 6), "step 0", 12, _FAINT)
        _text(draw, (right, bottom + 6), f"{story.shown:,}", 12, _FAINT, anchor="ra")
        x = left
        for label, colour in (
            ("value V(s)", _VALUE),
            ("members' range", _BAND) if story.q.shape[1] > 1 else ("", _FAINT),
            ("discounted return that followed", _REALISED),
            ("true optimal value", _TRUE) if story.true_values is not None else ("", _FAINT),
        ):
            if label:
                draw.rectangle((x, top - 22, x + 12, top - 10), fill=colour)
                _text(draw, (x + 18, top - 24), label, 14)
                x += 40 + int(_font(14).getlength(label))
        return image

    def _x(self, t: int) -> float:
        left, _, right, _ = _CURVE
        return left + (right - left) * t / max(1, self._story.shown - 1)

    def _y(self, value: float) -> float:
        _, top, _, bottom = _CURVE
        low, high = self._v_range
        return bottom - (bottom - top) * (value - low) / (high - low)


def fit(picture: np.ndarray) -> Image.Image:
    """An RGB picture as large as its place allows; small ones by whole factors, so that pixels stay square."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    width, height = _GAME[2] - _GAME[0], _GAME[3] - _GAME[1]
    scale = min(width / image.width, height / image.height)
    if scale >= 1:
        return image.resize((image.width * int(scale), image.height * int(scale)), Image.Resampling.NEAREST)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def draw_frame(frame: np.ndarray, scale: float) -> np.ndarray:
    """RGB of what the agent sees, where there is nothing else: pixels, channels of a grid in colours, or numbers."""
    if frame.ndim == 1:
        return _draw_numbers(frame)
    if scale != 1:  # an image: grey, or in colours
        pixels = np.moveaxis(frame, 0, -1)
        return pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    picture = np.zeros((*frame.shape[1:], 3), dtype=np.uint8)
    for channel, content in enumerate(frame):  # later channels lie on top
        picture[content > 0] = _rgb(CHANNELS[channel % len(CHANNELS)])
    return _with_grid(picture)


def _with_grid(picture: np.ndarray) -> np.ndarray:
    """Every cell enlarged, with a thin line around it."""
    cell = max(1, min((_GAME[2] - _GAME[0]) // picture.shape[1], (_GAME[3] - _GAME[1]) // picture.shape[0]))
    large = picture.repeat(cell, 0).repeat(cell, 1)
    if cell >= 4:
        large[::cell] = large[:, ::cell] = 40
    return large


def _draw_numbers(frame: np.ndarray) -> np.ndarray:
    """Marks are cells in a row, filled where they are 1; other numbers are bars, each with its value."""
    count, width = len(frame), _GAME[2] - _GAME[0]
    if np.isin(frame, (0, 1)).all():
        cells = np.full((1, count, 3), 235, dtype=np.uint8)
        cells[0, frame == 1] = _rgb(_VALUE)
        cell = max(1, min(60, width // count))
        row = cells.repeat(cell, 0).repeat(cell, 1)
        if cell >= 4:
            row[[0, -1]] = 120
            row[:, ::cell] = row[:, -1] = 120
        return row
    image = Image.new("RGB", (width, width), _PAPER)
    draw = ImageDraw.Draw(image)
    height = width / count
    for i, value in enumerate(frame):
        y, x = height * i, width / 2 + np.tanh(float(value)) * (width / 2 - 4)
        draw.rectangle((min(x, width / 2), y + height * 0.2, max(x, width / 2), y + height * 0.8), fill=_BAND)
        if height >= 12:
            _text(draw, (width / 2, y + height / 2), f"{value:.3g}", min(16, int(height)), anchor="mm")
    return np.asarray(image)


def _padded(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """A range that holds all numbers, with a little room."""
    low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    room = 0.05 * (high - low) or max(0.5, 0.05 * abs(high))
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """About three round numbers."""
    rough = (high - low) / 3
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(float(i * step), 12) + 0.0 for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


_FONTS: dict[int, ImageFont.FreeTypeFont] = {}


def _font(size: int) -> ImageFont.FreeTypeFont:
    """The one font that comes with matplotlib, so that pictures are the same everywhere."""
    if size not in _FONTS:
        _FONTS[size] = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size)
    return _FONTS[size]


def _text(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    colour: str = _TEXT,
    anchor: str = "la",
) -> None:
    draw.text(place, text, fill=colour, font=_font(size), anchor=anchor)


def _shortened(text: str, size: int, width: int) -> str:
    """Without its middle where it is too long."""
    kept = len(text)
    while _font(size).getlength(text) > width:
        kept -= 2
        text = f"{text[: kept // 2]}…{text[-(kept // 2) :]}"
    return text


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))
