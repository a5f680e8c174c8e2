"""What of a game's images a network never reads."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis import unseen
from meanq.envs.atari import Atari
from meanq.learning.networks import QNetwork
from tests.helpers import network_config

DATA_EFFICIENT = ("network=data_efficient",)
KEPT = Path(__file__).parents[2] / "docs" / "unseen.csv"


def test_in_breakout_nothing_that_the_network_reads_depends_on_the_paddle() -> None:
    """The ball is not served, so the paddle is all that moves."""
    env = Atari("breakout", np.random.default_rng(0))
    frames = {}
    for name in ("left", "right"):
        env.seed(np.random.default_rng(0))
        env.reset()
        frames[name] = np.stack([env.step(env.action_names().index(name)).frame[0] for _ in range(30)])
    different = frames["left"] != frames["right"]
    height, width = QNetwork((4, 84, 84), 4, network_config("data_efficient"), dueling=True, scale=1 / 255).seen
    assert different.any() and not different[:, :height, :width].any()


def test_a_share_is_that_of_pixels_that_change() -> None:
    changes = np.zeros((6, 8), dtype=np.int64)
    changes[0, 0], changes[5, 7], changes[1, 6] = 5, 3, 2
    row = unseen.View("game", (5, 6), changes, np.zeros((1, 6, 8)), 1.0).row()
    assert row == {"env": "game", "image": "6x8", "read": "5x6", "below": 0.3, "right": 0.2}


def test_the_table_in_the_repository_is_what_the_command_gives(tmp_path: Path) -> None:
    out = tmp_path / "unseen.csv"
    unseen.main([*DATA_EFFICIENT, "env=assault,boxing,breakout", "--out", str(out)])
    kept = pd.read_csv(KEPT).set_index("env")
    assert len(kept) == 26
    found = pd.read_csv(out).set_index("env")
    assert list(found.index) == ["breakout", "assault", "boxing"], "those with most out of sight first"
    pd.testing.assert_frame_equal(found, kept.loc[found.index], atol=0.002)  # a resize may round otherwise


def test_other_networks_or_images_are_read_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for overrides in (["network=nature"], ["env.options.screen_size=75"]):
        unseen.main([*DATA_EFFICIENT, "env=breakout", "seed=0,1", *overrides, "--steps", "30"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 and lines[1].split()[-2:] == ["0.0%", "0.0%"], "a row for both seeds"


def test_the_picture_shows_what_is_not_read_in_colour(tmp_path: Path) -> None:
    path = tmp_path / "new" / "unseen.png"
    unseen.main([*DATA_EFFICIENT, "env=assault,breakout", "--steps", "5", "--picture", str(path)])
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    coloured = pixels[..., 0] - pixels[..., 2] > 60  # the rest is grey
    assert 0.1 < coloured.mean() < 0.3  # 1 - (75 / 84)^2 = 0.2 of each image


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=chain"], "env=chain: its states are no images"),
        (["env=brakeout"], "env=brakeout: there is no such env"),
        (["env=minatar/breakout", "--steps", "1", "--picture", "{}/a.foo"], "--picture .*a.foo: cannot be written"),
        (["env=minatar/breakout", "--steps", "1", "--out", "{}"], "--out .*: cannot be written"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^analysis: {message}") as error:
        unseen.main([argument.format(tmp_path) for argument in arguments])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
