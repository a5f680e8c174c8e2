"""The trained agent at play: the very episodes of its evaluation, every picture of them, and nothing executed."""

import dataclasses
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from analysis.playing.drawing import CHANNELS, CHOSEN, MEMBER, REALISED, SIZE, TEXT, VALUE, Page, draw_frame
from analysis.playing.player import Screening, load_player, play_episode
from analysis.runs import AnalysisError, read_run
from analysis.video import main, make_video, write_gif
from meanq.envs import make_env
from meanq.rng import stream
from meanq.rundir.layout import Episode
from meanq.training.trained import Played
from tests.envs.test_small_envs import OWN
from tests.short_runs import SHORT, train, weights

FEW = ("total_steps=80", "algo.first_update=40", "evaluation.every=80", "evaluation.episodes=3", "probe.states=2")


def trained(factory: pytest.TempPathFactory, *overrides: str) -> Path:
    return train(factory.mktemp("runs"), "threads=1", *overrides).directory


@pytest.fixture(scope="module")
def minatar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("env=minatar/seaquest", "evaluation.episodes=4", "checkpoint.every=120", "checkpoint.keep=true")
    return trained(tmp_path_factory, *SHORT, *options)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory, "env=chain", "env.options.reward_noise=0.5", "env.options.max_steps=30", *FEW)


@pytest.fixture(scope="module")
def atari(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("algo=meanq_rainbow", "network=data_efficient", "env.options.max_frames=100", "env.options.noop_max=5")
    return trained(tmp_path_factory, "env=breakout", "algo.ensemble_size=2", *options, *FEW)


@pytest.fixture(scope="module")
def cart_pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory, "env=gymnasium", "env.id=CartPole-v1", *FEW)


def last_evaluation(directory: Path) -> pd.DataFrame:
    table = pd.read_csv(directory / "evaluations.csv")
    return table[table["step"] == table["step"].max()].set_index("episode")


def read_mp4(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    images = [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]
    return about, np.stack(images)


def read_gif(path: Path) -> tuple[list[int], np.ndarray]:
    """Durations in milliseconds, and the images."""
    durations, images = [], []
    with Image.open(path) as gif:
        for i in range(gif.n_frames):  # type: ignore[attr-defined]
            gif.seek(i)
            durations.append(gif.info["duration"])
            images.append(np.asarray(gif.convert("RGB")))
    return durations, np.stack(images)


def frames_of(directory: Path, played: Played, step: int) -> Iterator[np.ndarray]:
    """What the agent saw, by playing its actions once more."""
    player = load_player(read_run(directory))
    env = make_env(player.config.env, np.random.default_rng(5))
    env.seed(stream(player.config.seed, "evaluation", step, played.index))
    yield env.reset()
    for action in played.actions.tolist():
        yield env.step(action).frame


def cells(image: np.ndarray) -> np.ndarray:
    """The colours in the middle of the 10x10 cells of 42 pixels each, which begin at (16, 44)."""
    return image[44 + 21 : 464 : 42, 16 + 21 : 436 : 42].astype(int)


def colours(frame: np.ndarray) -> np.ndarray:
    """One colour per cell: that of the highest channel that is set, or black."""
    result = np.zeros((10, 10, 3), dtype=int)
    for channel, row, column in np.argwhere(frame):
        result[row, column] = list(bytes.fromhex(CHANNELS[channel][1:]))
    return result


@pytest.mark.parametrize("name", ["video.mp4", "video.gif"])
def test_every_state_of_the_recorded_episode_is_shown(minatar: Path, tmp_path: Path, name: str) -> None:
    video = make_video(minatar, tmp_path / name, episode=2)
    played = video.played
    recorded = last_evaluation(minatar).loc[2]
    assert (played.rewards.sum(), len(played.actions)) == (recorded["return"], recorded["length"])
    assert played.q[0].mean(0).max() == pytest.approx(recorded["value"], rel=1e-6)
    assert video.as_recorded
    states = len(played.actions) + 1
    assert video.fps == 10 and video.pictures == states + 10  # the last one stays for a second
    if name.endswith("mp4"):
        about, images = read_mp4(tmp_path / name)
        assert (about["size"], about["codec"], about["fps"]) == (SIZE, "h264", 10)
        assert about["pix_fmt"].startswith("yuv420p") and len(images) == video.pictures
    else:
        durations, images = read_gif(tmp_path / name)
        assert sum(durations) == 100 * video.pictures
        assert images.shape[1:] == (SIZE[1], SIZE[0], 3) and len(images) >= states
    frames = list(frames_of(minatar, played, 240))
    assert len({frame.tobytes() for frame in frames}) > 5, "a game in which nothing moves shows nothing"
    for frame, image in zip(frames, images, strict=False):
        np.testing.assert_allclose(cells(image), colours(frame), atol=24 if name.endswith("mp4") else 8)


@pytest.mark.parametrize("name", ["video.mp4", "video.gif"])
def test_the_same_run_gives_the_same_bytes(chain: Path, tmp_path: Path, name: str) -> None:
    for part in ("a", "b"):
        make_video(chain, tmp_path / part / name, seconds=2)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_return_that_followed_and_the_true_value(chain: Path) -> None:
    player = load_player(read_run(chain))
    recorded = last_evaluation(chain)
    discount = player.config.algo.discount
    starts = set()
    for played in [play_episode(player, i) for i in range(3)]:
        expected = [
            sum(discount ** (i - t) * played.rewards[i] for i in range(t, len(played.rewards)))
            for t in range(len(played.rewards))
        ]
        np.testing.assert_allclose(played.realised, expected, rtol=1e-9)
        assert expected[0] == pytest.approx(recorded.loc[played.index, "discounted_return"])
        env = make_env(player.config.env, np.random.default_rng(0))
        truth = env.all_true_q(discount).max(1)  # type: ignore[attr-defined]
        *frames, _ = frames_of(chain, played, 80)
        np.testing.assert_array_equal(played.true_values, [truth[frame.argmax()] for frame in frames])
        assert played.q.shape == (len(played.actions), 5, 2)
        np.testing.assert_array_equal(played.q.mean(1).argmax(-1), played.actions)
        starts.add(int(frames[0].argmax()))
    assert len(starts) > 1, "episodes that differ"


def test_atari_shows_every_frame_of_the_emulator(atari: Path, tmp_path: Path) -> None:
    video = make_video(atari, tmp_path / "video.mp4", episode=1)
    played, recorded = video.played, last_evaluation(atari).loc[1]
    assert (played.rewards.sum(), len(played.actions)) == (recorded["return"], recorded["length"])
    assert video.as_recorded
    player = load_player(read_run(atari))
    pictures = list(Screening(player).pictures(played))
    steps = len(played.actions)
    assert [t for t, _ in pictures] == [t for t in range(steps) for _ in range(4)] + [steps]
    # An emulator that skips frames shows the same screen after each step.
    env = make_env(player.config.env, np.random.default_rng(5))
    env.seed(stream(player.config.seed, "evaluation", 80, 1))
    env.reset()
    screens = [env.render()]
    for action in played.actions.tolist():
        env.step(action)
        screens.append(env.render())
    for (_, rgb), screen in zip(pictures[::4], screens, strict=True):
        np.testing.assert_array_equal(rgb, screen)
    assert any((a != b).any() for (_, a), (_, b) in zip(pictures[1::4], pictures[::4], strict=False))
    _, images = read_mp4(tmp_path / "video.mp4")
    assert video.fps == 60 and len(images) == len(pictures) + 60
    for (_, rgb), image in zip(pictures, images, strict=False):
        shown = image[44:464, 66:386].astype(float)  # 160x210, twice as large, in the middle of its place
        doubled = rgb.repeat(2, 0).repeat(2, 1)
        assert np.abs(shown - doubled).mean() < 4, "lossy, and colours at half the resolution"


def test_a_game_that_ends_between_two_steps(atari: Path) -> None:
    player = load_player(read_run(atari))
    options = {**player.config.env.options, "max_frames": 108_000}
    player.config.env = dataclasses.replace(player.config.env, options=options)
    env = make_env(player.config.env, np.random.default_rng(5))
    env.seed(stream(player.config.seed, "evaluation", player.step, 7))
    env.reset()
    actions, rewards, generator, acts, over = [], [], np.random.default_rng(0), 0, False
    while not over:
        action = int(generator.integers(env.num_actions))
        before = env.state_dict()["frames"]
        outcome = env.step(action)
        actions.append(action)
        rewards.append(outcome.reward)
        over = outcome.terminal
        acts += env.state_dict()["frames"] - before
    assert sum(rewards) > 0 and acts % 4 != 0, "else it is another test"
    empty = np.array([])
    played = Played(7, np.array(actions), np.array(rewards), empty, empty, empty, True, Episode())
    pictures = list(Screening(player).pictures(played))
    assert len(pictures) == acts + 1 and pictures[-1][0] == len(actions)
    played.rewards[-2] += 1
    with pytest.raises(AnalysisError, match="lead elsewhere"):
        list(Screening(player).pictures(played))


def test_gymnasium_draws_itself(cart_pole: Path, tmp_path: Path) -> None:
    video = make_video(cart_pole, tmp_path / "video.mp4", episode=2)
    assert video.as_recorded and not video.notes
    played = video.played
    assert played.rewards.sum() == last_evaluation(cart_pole).loc[2, "return"]
    pictures = [rgb for _, rgb in Screening(load_player(read_run(cart_pole))).pictures(played)]
    assert {rgb.shape for rgb in pictures} == {(400, 600, 3)} and len({rgb.tobytes() for rgb in pictures}) > 3
    assert video.pictures == len(pictures) + 50 == len(played.actions) + 1 + 50


def test_what_gymnasium_cannot_draw_is_shown_as_numbers(
    cart_pole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pygame(env: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed,\nrun pip")

    monkeypatch.setattr("meanq.envs.gym.Gymnasium.render", no_pygame)
    video = make_video(cart_pole, tmp_path / "video.mp4")
    (note,) = video.notes
    assert "observations" in note and "pygame" in note and "\n" not in note
    assert len(read_mp4(tmp_path / "video.mp4")[1]) == video.pictures
    drawn = [draw_frame(np.array(frame, np.float32), 1.0) for frame in ([0.1, -2, 0, 5], [0.1, 2, 0, 5])]
    assert (drawn[0] != drawn[1]).any()


def test_frames_without_a_picture() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.testing.assert_array_equal(draw_frame(image, 1 / 255), image.transpose(1, 2, 0))
    np.testing.assert_array_equal(draw_frame(image[:1], 1 / 255), image[0][..., None].repeat(3, -1))
    row = draw_frame(np.array([0, 0, 1, 0], np.float32), 1.0)
    middles = row[row.shape[0] // 2, row.shape[1] // 8 :: row.shape[1] // 4]
    assert [tuple(colour) == tuple(middles[0]) for colour in middles] == [True, True, False, True]


def pixels_of(image: np.ndarray, colour: str, left: int, top: int) -> np.ndarray:
    """The places [n, 2], as (y, x), right of and below the given one that have this very colour."""
    found = (image[top:, left:] == list(bytes.fromhex(colour[1:]))).all(-1)
    return np.argwhere(found) + np.array([top, left])


def test_values_are_drawn_where_they_are() -> None:
    """V rises from 1 to 3, the return that followed falls from 3.5 to 1.5, and the two actions are taken in turn."""
    steps, spread = 5, np.array([0.0, 0.0, 0.4, 0.0, 0.0])
    value = np.linspace(1, 3, steps)
    taken = np.arange(steps) % 2
    q = np.zeros((steps, 2, 2))
    q[np.arange(steps), :, taken] = value[:, None] + spread[:, None] * [-1, 1]
    realised, game = value[::-1] + 0.5, np.zeros((10, 10, 3))
    played = Played(0, taken, np.ones(steps), realised, q, np.array([]), True, Episode())
    page = Page("title", ["a", "b"], played, steps, game)
    images = [page.draw(t, game) for t in range(steps + 1)]
    blue, orange = VALUE, REALISED
    heights, places = {blue: [], orange: []}, []
    for image in images[:steps]:
        x = int(np.median(pixels_of(image, TEXT, 70, 520)[:, 1]))  # of the line that says where we are
        places.append(x)
        for colour, found in heights.items():
            dot = pixels_of(image, colour, x - 2, 500)
            found.append(dot[dot[:, 1] <= x + 2][:, 0].mean())
    assert places == sorted(set(places)) and len(places) == steps
    assert (np.diff(heights[blue]) < 0).all() and (np.diff(heights[orange]) > 0).all(), "up is less"
    assert heights[blue][4] == pytest.approx(heights[orange][1], abs=2), "both are 3"
    assert heights[blue][2] == pytest.approx(heights[orange][3], abs=2), "both are 2"
    rows = [pixels_of(image, CHOSEN, 464, 130)[:, 0].min() for image in images[:steps]]
    assert rows[0] == rows[2] == rows[4] < rows[1] == rows[3], "the action taken is marked"
    wide = [np.ptp(pixels_of(image, MEMBER, 464, 130)[:, 1]) for image in images[:steps]]
    assert wide[2] > wide[0] + 20, "members that disagree lie apart"


def test_long_episodes_are_cut(tmp_path: Path) -> None:
    directory = train(
        tmp_path / "runs", "threads=1", "env=chain", "env.options.slip=0.5", "env.options.length=60",
        "env.options.max_steps=220", *FEW,
    ).directory  # fmt: skip
    lengths = last_evaluation(directory)["length"]
    assert lengths[0] > 200, "else there is nothing to cut"
    video = make_video(directory, tmp_path / "video.mp4", seconds=5)
    assert video.pictures == 5 * 4 + 4 and len(read_mp4(tmp_path / "video.mp4")[1]) == 24
    assert video.as_recorded and len(video.played.actions) == lengths[0]
    assert any(f"the first 20 of {lengths[0]} steps are shown (--seconds)" in note for note in video.notes)


def test_a_gif_keeps_the_speed_and_leaves_out_pictures(tmp_path: Path) -> None:
    write_gif(tmp_path / "video.gif", (np.full((8, 8, 3), i, np.uint8) for i in range(120)), fps=60)
    durations, images = read_gif(tmp_path / "video.gif")
    assert sum(durations) == 2000 and min(durations) >= 40 and len(images) == 40


def test_a_video_changes_nothing_in_the_run_s_directory(
    minatar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in minatar.rglob("*") if path.is_file()}

    before = contents()
    monkeypatch.chdir(tmp_path)
    video = make_video(minatar, seconds=1)
    assert contents() == before
    assert [path.name for path in tmp_path.iterdir()] == [video.path.name]
    assert video.path.name.startswith("minatar_seaquest_meanq_") and video.path.name.endswith("_seed_0.mp4")


def copied(directory: Path, to: Path, **changes: Any) -> Path:
    """The run without its checkpoint, some fields of its configuration changed: `algo__name=...`."""
    to.mkdir(parents=True)
    for path in directory.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    config = yaml.safe_load((to / "config.yaml").read_text())
    for name, value in changes.items():
        *groups, field = name.split("__")
        node = config
        for group in groups:
            node = node[group]
        node[field] = value
    (to / "config.yaml").write_text(yaml.safe_dump(config))
    return to


def refusal(directory: Path, *options: str) -> str:
    """What the command says instead of making a video: one line."""
    out = directory.parent / "refused.mp4"
    arguments = [str(directory), *(() if "--out" in options else ("--out", str(out))), *options]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, str) and "\n" not in stop.value.code and not out.exists()
    assert stop.value.code.startswith("analysis: ")
    return stop.value.code


def test_the_newest_checkpoint_plays_where_a_run_is_not_finished(minatar: Path, tmp_path: Path) -> None:
    run = copied(minatar, tmp_path / "seed_0")
    (run / "weights.safetensors").unlink()
    assert "nothing yet that could play" in refusal(run)
    shutil.copytree(minatar / "checkpoint", run / "checkpoint")
    video = make_video(run, tmp_path / "newest.mp4", seconds=1)
    assert video.as_recorded and any("not finished" in note and "240" in note for note in video.notes)
    # The one before is that of step 120, at which the run was evaluated as well.
    video = make_video(minatar, tmp_path / "earlier.mp4", checkpoint=120)
    table = pd.read_csv(minatar / "evaluations.csv").query("step == 120").set_index("episode")
    assert video.as_recorded and not any("not finished" in note for note in video.notes)
    assert len(video.played.actions) == table.loc[0, "length"]
    assert "(it has: 120, 240)" in refusal(run, "--checkpoint", "100")


def test_a_checkpoint_between_two_evaluations_has_nothing_to_be_compared_with(minatar: Path, tmp_path: Path) -> None:
    run = copied(minatar, tmp_path / "seed_0")
    table = pd.read_csv(run / "evaluations.csv")
    table[table["step"] == 120].to_csv(run / "evaluations.csv", index=False)
    video = make_video(run, tmp_path / "video.mp4", seconds=1)
    assert not video.as_recorded and any("no such episode at step 240" in note for note in video.notes)


def test_a_damaged_checkpoint_is_one_line(minatar: Path, tmp_path: Path) -> None:
    run = copied(minatar, tmp_path / "seed_0")
    (run / "weights.safetensors").unlink()
    (run / "checkpoint").mkdir()
    for path in (minatar / "checkpoint").iterdir():
        (run / "checkpoint" / path.name).write_bytes(path.read_bytes()[:-100])
    assert "weights cannot be read" in refusal(run)


def test_other_weights_are_noticed(minatar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(minatar, tmp_path / "seed_0")
    changed = {name: -tensor for name, tensor in weights(minatar).items()}
    save_file(changed, run / "weights.safetensors")
    main([str(run), "--out", str(tmp_path / "video.mp4"), "--seconds", "1"])
    said = capsys.readouterr()
    assert "1 of 1 greedy episodes are not as in evaluations.csv at step 240" in said.err
    assert "as in evaluations.csv" not in said.out
    changed["value.bias"] = torch.zeros(2, 3)
    save_file(changed, run / "weights.safetensors")
    assert "value.bias is (2, 3) not " in refusal(run)


class Malicious:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_in_place_of_weights_is_not_executed(minatar: Path, tmp_path: Path) -> None:
    run, trace = copied(minatar, tmp_path / "seed_0"), tmp_path / "executed"
    content = pickle.dumps({"hidden.bias": Malicious(trace)})
    pickle.loads(content)
    assert trace.exists(), "it would work"
    trace.unlink()
    torch.save({"hidden.bias": Malicious(trace)}, tmp_path / "torch")
    for data in (content, (tmp_path / "torch").read_bytes()):
        (run / "weights.safetensors").write_bytes(data)
        assert "weights cannot be read" in refusal(run)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algo__forgotten": 200}, "algo.forgotten"),
        ({"algo__dueling": "perhaps"}, "algo.dueling"),
        ({"algo__value": "cubic"}, "algo.value=cubic"),
        ({"algo__atoms": 1}, "algo.atoms=1"),
        ({"network__hidden": 10**12}, "its weights are not those of its config.yaml"),
        ({"env__options": {"lenght": 3}}, "env.options"),
        ({"env__kind": "os.system", "env__id": "touch executed"}, "env.kind=os.system names code outside meanq"),
        ({"env__kind": "gymnasium", "env__id": "evil:Game-v0", "env__options": {}}, "env.id=evil:Game-v0 names code"),
        ({"env__id": "../../../../evil"}, "no such MinAtar game"),
        ({"env__id": "EVIL"}, "no such MinAtar game"),  # the absolute path of a module
    ],
)
def test_a_stranger_s_configuration_executes_nothing(
    minatar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {name: str(tmp_path / "evil") if value == "EVIL" else value for name, value in changes.items()}
    run = copied(minatar, tmp_path / "runs" / "seed_0", **changes)
    assert said in refusal(run)
    assert not (tmp_path / "executed").exists()


def test_a_bootstrap_rule_of_one_s_own_is_not_imported(
    minatar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.py").write_text("raise SystemError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = copied(minatar, tmp_path / "seed_0", algo__bootstrap="rules.mine", root="/nowhere", device="cuda:7")
    assert make_video(run, tmp_path / "video.mp4", seconds=1).as_recorded


def test_an_environment_of_one_s_own_plays_where_it_is_trusted(tmp_path: Path) -> None:
    options = ("+env.options.start=7", "network=mlp", "env.stack=1", *FEW)
    directory = train(tmp_path / "runs", "threads=1", *OWN, *options).directory
    assert "--trust" in refusal(directory)
    video = make_video(directory, tmp_path / "video.mp4", trust=True)
    assert video.as_recorded and video.played.rewards.sum() == 21 and video.pictures == 8 + 10


def test_mistakes_are_one_line(minatar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no config.yaml" in refusal(tmp_path)
    assert "is not the directory of a run, .../seed_<n>" in refusal(minatar.parent)
    assert "is not the directory of a run" in refusal(tmp_path / "nothing")
    assert "ends in .mp4 or .gif" in refusal(minatar, "--out", str(tmp_path / "video.avi"))
    assert "has 4 episodes" in refusal(minatar, "--episode", "4")
    (tmp_path / "file").touch()
    assert "cannot be written" in refusal(minatar, "--out", str(tmp_path / "file" / "video.mp4"))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert "pip install 'meanq[video]'" in refusal(minatar)
    with pytest.raises(AnalysisError, match=r"config\.yaml"):
        make_video(copied(minatar, tmp_path / "seed_1", algo=None), tmp_path / "video.gif")


def test_help_is_quick() -> None:
    program = (
        "import sys, analysis.video\n"
        "try: analysis.video.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'meanq.training.loop', 'PIL', 'imageio_ffmpeg', 'gymnasium')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "--episode " in result.stdout and result.stdout.strip().endswith("[]"), result.stderr
