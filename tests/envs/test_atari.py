"""The Atari protocol against slow, obvious versions that drive the emulator, gymnasium and ale_py's own vector env."""

import pickle
from collections import Counter
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
import yaml
from ale_py.vector_env import AtariVectorEnv
from scipy import stats

from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR
from meanq.envs import FrameStack, Step, make_env
from meanq.envs.atari import Atari
from meanq.learning.networks import QNetwork
from meanq.rundir.layout import Episode
from tests.helpers import compose, play

# The sizes of the minimal action sets.
ACTIONS = {
    "alien": 18,
    "amidar": 10,
    "assault": 7,
    "asterix": 9,
    "bank_heist": 18,
    "battle_zone": 18,
    "boxing": 18,
    "breakout": 4,
    "chopper_command": 18,
    "crazy_climber": 9,
    "demon_attack": 6,
    "freeway": 3,
    "frostbite": 18,
    "gopher": 8,
    "hero": 18,
    "jamesbond": 18,
    "kangaroo": 18,
    "krull": 18,
    "kung_fu_master": 14,
    "ms_pacman": 9,
    "pong": 6,
    "private_eye": 18,
    "qbert": 6,
    "road_runner": 18,
    "seaquest": 18,
    "up_n_down": 6,
}
NOOP, FIRE = 0, 1  # in every minimal action set that has FIRE


def make(game: str, seed: int = 0, **options: Any) -> Atari:
    return Atari(game, np.random.default_rng(seed), **options)


def emulator(game: str, sticky: float = 0.0, seed: int = 1) -> ale_py.ALEInterface:
    """The bare console after a reset."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("random_seed", seed)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()
    return ale


def shrink(screen: np.ndarray) -> np.ndarray:
    return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)


def slow_step(ale: ale_py.ALEInterface, action: int) -> tuple[np.ndarray | None, float]:
    """Four frames, one after another. The last frame of a game has no counterpart: nothing is learned from it."""
    rewards, screens = [], []
    for _ in range(4):
        rewards.append(ale.act(ale.getMinimalActionSet()[action]))
        screens.append(ale.getScreenGrayscale())
        if ale.game_over():
            return None, sum(rewards)
    third, fourth = screens[2:]
    return shrink(np.where(third > fourth, third, fourth)), sum(rewards)


def random_actions(env: Atari, seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(env.num_actions, size=count).tolist()


def same(first: Step, second: Step) -> bool:
    return np.array_equal(first.frame, second.frame) and first[1:] == second[1:]


@pytest.mark.parametrize("game", ["breakout", "qbert", "ms_pacman"])
def test_a_whole_game_frame_by_frame(game: str) -> None:
    env, ale = make(game, noop_max=0), emulator(game)
    np.testing.assert_array_equal(env.reset()[0], shrink(ale.getScreenGrayscale()))
    lives = ale.lives()
    rewards, lost = Counter[float](), 0
    for t, action in enumerate(random_actions(env, seed=5, count=3000)):
        outcome = env.step(action)
        frame, reward = slow_step(ale, action)
        over = ale.game_over()
        assert outcome.reward == reward, t
        assert outcome.terminal == over, t
        assert not outcome.truncated
        # A lost life is only flagged: the same emulator goes on, which the equality of all later frames shows.
        assert outcome.life_lost == (ale.lives() < lives and not over), t
        lives = ale.lives()
        rewards[reward] += 1
        lost += outcome.life_lost
        if over:
            break
        assert outcome.frame.shape == env.frame_shape == (1, 84, 84)
        assert outcome.frame.dtype == env.frame_dtype == np.uint8
        np.testing.assert_array_equal(outcome.frame[0], frame, err_msg=f"step {t}")
    assert over and not outcome.life_lost
    assert lost == {"breakout": 4, "qbert": 3, "ms_pacman": 2}[game]
    assert max(rewards) > (0 if game == "breakout" else 1)  # rewards come, and come unclipped


def test_rewards_of_all_skipped_frames_count() -> None:
    """Ms. Pac-Man pays at the first and third of four frames, so that the last one alone would miss everything."""
    env, ale = make("ms_pacman", noop_max=0), emulator("ms_pacman")
    env.reset()
    at = np.zeros(4)  # which of the frames paid how much
    total = 0.0
    for action in random_actions(env, seed=0, count=100):
        total += env.step(action).reward
        at += [ale.act(ale.getMinimalActionSet()[action]) for _ in range(4)]
    assert total == at.sum() > 0
    assert at[0] > 0 and at[2] > 0 and at[3] == 0


INTERPOLATIONS = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}


@pytest.mark.parametrize("resize", INTERPOLATIONS)
@pytest.mark.parametrize("resize_first", [False, True])
def test_the_interpolation_and_its_place_before_or_after_the_maximum(resize: str, resize_first: bool) -> None:
    """In Pong, where the ball flickers, so that each of the four combinations gives other frames."""

    def shrink_by(name: str, screen: np.ndarray) -> np.ndarray:
        return cv2.resize(screen, (84, 84), interpolation=INTERPOLATIONS[name])

    def frames(third: np.ndarray, fourth: np.ndarray) -> dict[tuple[str, bool], np.ndarray]:
        first = {name: np.maximum(shrink_by(name, third), shrink_by(name, fourth)) for name in INTERPOLATIONS}
        last = {name: shrink_by(name, np.maximum(third, fourth)) for name in INTERPOLATIONS}
        return {(name, order): (first if order else last)[name] for name in first for order in (False, True)}

    env, ale = make("pong", noop_max=0, resize=resize, resize_first=resize_first), emulator("pong")
    np.testing.assert_array_equal(env.reset()[0], shrink_by(resize, ale.getScreenGrayscale()))
    differ = Counter[tuple[str, bool]]()
    for t, action in enumerate(random_actions(env, seed=0, count=100)):
        screens = []
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[action])
            screens.append(ale.getScreenGrayscale())
        expected = frames(*screens[2:])
        np.testing.assert_array_equal(env.step(action).frame[0], expected[resize, resize_first], err_msg=f"step {t}")
        differ.update(other for other in expected if (expected[other] != expected[resize, resize_first]).any())
    assert len(differ) == 3 and min(differ.values()) > 25, differ


@pytest.mark.parametrize("game", ["pong", "ms_pacman"])
def test_gymnasium_s_preprocessing_gives_the_same(game: str) -> None:
    gymnasium.register_envs(ale_py)
    name = "".join(word.capitalize() for word in game.split("_"))
    raw = gymnasium.make(f"ALE/{name}-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False)
    reference = gymnasium.wrappers.AtariPreprocessing(raw, noop_max=0, frame_skip=4, screen_size=84)
    env = make(game, noop_max=0)
    observation, _ = reference.reset()
    np.testing.assert_array_equal(env.reset()[0], observation)
    for t, action in enumerate(random_actions(env, seed=1, count=250)):
        outcome = env.step(action)
        observation, reward, terminal, _, _ = reference.step(action)
        assert (outcome.reward, outcome.terminal) == (reward, terminal)
        assert not terminal, "choose a seed that survives"
        np.testing.assert_array_equal(outcome.frame[0], observation, err_msg=f"step {t}")
    reference.close()


@pytest.mark.parametrize("game", ["breakout", "seaquest"])
def test_a_whole_game_in_ale_s_vector_env(game: str) -> None:
    """Whole states, from the first: blank frames before the start, then the last four. The last frame is not compared:
    there the vector env shows other pixels, and nothing is learned from it."""
    vector = AtariVectorEnv(
        game, 1, reward_clipping=False, use_fire_reset=False, noop_max=0, repeat_action_probability=0.0, stack_num=4
    )
    env = make(game, noop_max=0)
    stack = FrameStack(4, env.frame_shape, env.frame_dtype)
    observations, _ = vector.reset(seed=0)
    np.testing.assert_array_equal(stack.start(env.reset()), observations[0])
    assert not observations[0, :3].any()
    for t, action in enumerate(random_actions(env, seed=6, count=3000)):
        outcome = env.step(action)
        observations, rewards, terminals, truncations, info = vector.step(np.array([action]))
        assert (outcome.reward, outcome.terminal, outcome.truncated) == (rewards[0], terminals[0], truncations[0]), t
        if outcome.terminal:
            break
        np.testing.assert_array_equal(stack.push(outcome.frame), observations[0], err_msg=f"step {t}")
        assert env.state_dict()["frames"] == info["episode_frame_number"][0]
    assert outcome.terminal
    vector.close()


def test_the_resize_is_the_mean_over_each_pixel_s_area() -> None:
    """Against exact area weights rather than OpenCV; a half may round either way."""

    def weights(size: int) -> np.ndarray:  # [84, size]
        scale = size / 84
        edges, pixels = np.arange(84)[:, None] * scale, np.arange(size)[None]
        overlap = np.minimum(edges + scale, pixels + 1) - np.maximum(edges, pixels)
        return np.maximum(overlap, 0) / scale

    env, ale = make("seaquest", noop_max=0), emulator("seaquest")
    env.reset()
    for action in random_actions(env, seed=0, count=50):
        frame = env.step(action).frame[0]
        for _ in range(3):
            ale.act(ale.getMinimalActionSet()[action])
        third = ale.getScreenGrayscale()
        ale.act(ale.getMinimalActionSet()[action])
        exact = weights(210) @ np.maximum(third, ale.getScreenGrayscale()) @ weights(160).T
        assert np.abs(frame - exact).max() <= 0.5 + 1e-3


def test_the_data_efficient_network_cannot_read_the_heat_of_assault_s_gun() -> None:
    """Held fire heats the gun, and lastly costs a life; what changes where the network does not look is the gauge."""
    env = Atari("assault", np.random.default_rng(0))
    env.reset()
    up = env.action_names().index("up")
    frames = [env.step(up).frame[0].astype(int) for _ in range(40)]
    below = [frame[75:] for frame in frames]
    assert (np.diff(below, axis=0) != 0).any((1, 2)).sum() >= 4  # it grows
    assert np.sum(below[-1] > 50) > np.sum(below[0] > 50)
    config = compose("env=assault", "network=data_efficient")
    network = QNetwork((4, 84, 84), env.num_actions, config.network, dueling=True, scale=1 / 255)
    assert network.seen == (75, 75)


def test_nothing_that_the_data_efficient_network_reads_depends_on_breakout_s_paddle() -> None:
    """The ball is not served, so the paddle is all that moves."""
    env = Atari("breakout", np.random.default_rng(0))
    frames = {}
    for name in ("left", "right"):
        env.seed(np.random.default_rng(0))
        env.reset()
        frames[name] = np.stack([env.step(env.action_names().index(name)).frame[0] for _ in range(30)])
    different = frames["left"] != frames["right"]
    assert different.any() and not different[:, :75, :75].any()


def test_the_maximum_matters() -> None:
    """The comparisons above could not tell a maximum from the last frame alone if no sprite ever flickered."""
    ale = emulator("pong")
    differ = 0
    for action in np.random.default_rng(0).integers(6, size=50):
        screens = []
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[action])
            screens.append(ale.getScreenGrayscale())
        differ += bool((screens[2] > screens[3]).any())
    assert differ > 25


def test_no_sticky_actions() -> None:
    """The same actions always lead to the same frames, whatever the seed; a sticky emulator would differ."""
    first, second = make("breakout", seed=1, noop_max=0), make("breakout", seed=2, noop_max=0)
    assert first._ale.getFloat("repeat_action_probability") == 0
    sticky = emulator("breakout", sticky=0.25)
    np.testing.assert_array_equal(first.reset(), second.reset())
    sticky_differs = False
    for action in random_actions(first, seed=4, count=150):
        outcome = first.step(action)
        assert same(outcome, second.step(action))
        frame, _ = slow_step(sticky, action)
        sticky_differs |= not np.array_equal(frame, outcome.frame[0])
    assert sticky_differs


def test_nobody_presses_fire() -> None:
    """In Breakout the ball is only served by FIRE: waiting costs no life, until it is pressed once."""
    env = make("breakout", noop_max=30)
    start = env.reset()
    for _ in range(300):
        outcome = env.step(NOOP)
        assert not outcome.life_lost
        np.testing.assert_array_equal(outcome.frame, start)
    env.step(FIRE)
    assert any(env.step(NOOP).life_lost for _ in range(100))


def test_zero_to_29_noops_each_as_likely() -> None:
    env = make("jamesbond", seed=0)
    counts = Counter[int]()
    for _ in range(240):
        env.reset()
        counts[env.state_dict()["frames"]] += 1
    assert sorted(counts) == list(range(30))
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_noops_come_from_the_environment_s_own_generator() -> None:
    def noops(env: Atari) -> list[int]:
        counts = []
        for _ in range(6):
            env.reset()
            counts.append(env.state_dict()["frames"])
        return counts

    env = make("jamesbond", seed=5)
    expected = noops(env)
    assert noops(make("jamesbond", seed=5)) == expected
    assert noops(make("jamesbond", seed=6)) != expected
    assert noops(env) != expected
    env.seed(np.random.default_rng(5))
    assert noops(env) == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_noop_is_one_frame_of_waiting(seed: int) -> None:
    env, ale = make("freeway", seed=seed), emulator("freeway")
    frame = env.reset()
    for _ in range(env.state_dict()["frames"]):
        ale.act(ale_py.Action.NOOP)
    np.testing.assert_array_equal(frame[0], shrink(ale.getScreenGrayscale()))
    for action in random_actions(env, seed=seed, count=20):
        np.testing.assert_array_equal(env.step(action).frame[0], slow_step(ale, action)[0])


def test_the_cap_truncates() -> None:
    env, longer = make("pong", noop_max=0, max_frames=400), make("pong", noop_max=0, max_frames=404)
    env.reset(), longer.reset()
    for t in range(1, 101):
        capped, free = env.step(NOOP), longer.step(NOOP)
        assert capped.truncated == (t == 100)
        assert not capped.terminal and not capped.life_lost and not free.truncated
        np.testing.assert_array_equal(capped.frame, free.frame)
    assert longer.step(NOOP).truncated
    env.reset()
    assert not env.step(NOOP).truncated  # it is counted anew


def test_the_cap_counts_noops() -> None:
    env = make("pong", seed=0, max_frames=400)
    env.reset()
    noops = env.state_dict()["frames"]
    assert noops > 4
    steps = 1
    while not env.step(NOOP).truncated:
        steps += 1
    assert steps == -(-(400 - noops) // 4)


def test_a_game_that_ends_at_the_cap_is_over() -> None:
    def play(max_frames: int) -> tuple[int, Step]:
        env = make("breakout", noop_max=0, max_frames=max_frames)
        env.reset()
        for action in random_actions(env, seed=8, count=3000):
            outcome = env.step(action)
            if outcome.terminal or outcome.truncated:
                break
        return env.state_dict()["frames"], outcome

    frames, outcome = play(108_000)
    assert outcome.terminal
    at_cap, outcome = play(frames)
    assert at_cap == frames
    assert outcome.terminal and not outcome.truncated
    _, outcome = play(frames - 4)
    assert outcome.truncated and not outcome.terminal


def test_the_protocol_s_numbers() -> None:
    config = compose("env=breakout").env
    options = {"frame_skip": 4, "screen_size": 84, "noop_max": 30, "max_frames": 108_000}
    frames = {"resize": "area", "resize_first": False, "noop_after_life": False}
    assert config.options == options | frames and not config.stack_over_lives
    assert (config.stack, config.clip_rewards) == (4, True)


def test_conf_has_exactly_these_games() -> None:
    files = (CONFIG_DIR / "env").glob("[a-z]*.yaml")
    games = [path.stem for path in files if "_atari" in yaml.safe_load(path.read_text())["defaults"]]
    assert sorted(games) == sorted(ACTIONS) and len(games) == 26


@pytest.mark.parametrize("game", ACTIONS)
def test_every_game_runs(game: str) -> None:
    env = make_env(compose(f"env={game}").env, np.random.default_rng(0))
    assert env.num_actions == ACTIONS[game]
    frames = [env.reset()]
    start = env.state_dict()["frames"]
    for action in range(env.num_actions):
        outcome = env.step(action)
        assert not (outcome.terminal or outcome.truncated)
        frames.append(outcome.frame)
    assert {frame.shape for frame in frames} == {(1, 84, 84)}
    assert all(frame.any() for frame in frames)
    assert env.state_dict()["frames"] - start == 4 * env.num_actions


def test_an_unknown_game() -> None:
    with pytest.raises(ConfigError, match=r"^env.id=brekout: .*breakout") as error:
        make("brekout")
    assert "\n" not in str(error.value)


def played(game: str, seed: int, steps: int) -> Atari:
    """An environment in the middle of a game."""
    env = make(game, seed=seed)
    env.reset()
    for action in random_actions(env, seed=seed, count=steps):
        if env.step(action).terminal:
            env.reset()
    return env


@pytest.mark.parametrize(
    ("game", "steps"),
    [("qbert", 0), ("qbert", 1), ("qbert", 150), ("breakout", 0), ("breakout", 100), ("ms_pacman", 70)],
)
def test_a_saved_game_goes_on_exactly(game: str, steps: int) -> None:
    env = played(game, seed=steps, steps=steps)
    state = pickle.loads(pickle.dumps(env.state_dict()))
    fresh, busy = make(game, seed=77), played(game, seed=78, steps=30)
    for other in (fresh, busy):
        other.load_state_dict(state)
    for t, action in enumerate(random_actions(env, seed=9, count=110)):
        outcome = env.step(action)
        for other in (fresh, busy):
            assert same(outcome, other.step(action)), t
        if outcome.terminal or t == 99:  # the generator is restored as well: the next game has the same no-ops
            frame = env.reset()
            for other in (fresh, busy):
                np.testing.assert_array_equal(frame, other.reset())
                assert env.state_dict()["frames"] == other.state_dict()["frames"]


def test_a_life_lost_right_after_restoring() -> None:
    env = make("breakout")
    env.reset()
    for action in random_actions(env, seed=0, count=500):
        before = env.state_dict()
        if env.step(action).life_lost:
            break
    other = make("breakout", seed=1)
    other.load_state_dict(before)
    assert other.step(action).life_lost


def play_lives(env: Atari, seed: int, count: int) -> list[Any]:
    """What random play shows, with every lost life begun as training does."""
    seen: list[Any] = []
    for action in random_actions(env, seed=seed, count=count):
        outcome = env.step(action)
        seen.append((outcome.frame.tobytes(), *outcome[1:]))
        if outcome.life_lost:
            seen.append(env.start_life(outcome.frame).tobytes())
        if outcome.terminal:
            seen.append(env.reset().tobytes())
    return seen


@pytest.mark.parametrize("noop", [False, True])
def test_a_new_life_begins_with_one_frame_of_no_op_or_none(noop: bool) -> None:
    """The emulator beside it is given the same actions, and that one frame; a difference would show from then on."""
    env, ale = make("qbert", noop_max=0, noop_after_life=noop), emulator("qbert")
    env.reset()
    lost = moved = 0
    for t, action in enumerate(random_actions(env, seed=5, count=3000)):
        outcome = env.step(action)
        frame, reward = slow_step(ale, action)
        assert (outcome.reward, outcome.terminal) == (reward, ale.game_over()), t
        if outcome.terminal:
            break
        np.testing.assert_array_equal(outcome.frame[0], frame, err_msg=f"step {t}")
        if outcome.life_lost:
            lost += 1
            before, given = env.state_dict()["frames"], outcome.frame.copy()
            first = env.start_life(outcome.frame)
            assert env.state_dict()["frames"] - before == int(noop)
            if noop:
                ale.act(ale_py.Action.NOOP)
                np.testing.assert_array_equal(first[0], shrink(ale.getScreenGrayscale()))
                moved += not np.array_equal(first, given)
            else:
                assert first is outcome.frame
                np.testing.assert_array_equal(first, given)
    assert outcome.terminal and lost == 3
    assert moved == (3 if noop else 0), "a single frame is not the maximum of two"


def test_the_reward_of_the_no_op_after_a_life_is_nobody_s() -> None:
    """Pong's ball goes on while nothing is pressed; here the point comes in the very frame of the no-op."""
    env = make("pong", noop_max=0, frame_skip=1, noop_after_life=True)
    env.reset()
    while True:
        before = env.state_dict()
        outcome = env.step(NOOP)
        if outcome.reward:
            break
    env.load_state_dict(before)
    env.start_life(outcome.frame)
    after = env.step(NOOP)
    assert outcome.reward == -1 and after.reward == 0
    assert env.state_dict()["frames"] == before["frames"] + 2


def test_evaluation_does_not_begin_lives() -> None:
    """The values depend on the states, so that another frame would lead to other actions."""

    def values(states: np.ndarray) -> np.ndarray:
        return np.stack([np.random.default_rng(int(state.sum())).random(6) for state in states])[None]

    def episodes(**options: Any) -> list[Episode]:
        envs = [make("qbert", seed=seed, max_frames=4000, **options) for seed in range(2)]
        return play(values, envs, 4, 0.99, clip=True)

    played = episodes(noop_after_life=True)
    assert played == episodes(noop_after_life=False)
    assert any(episode.discounted_return_first_life != episode.discounted_return for episode in played), (
        "a life is lost"
    )


def test_a_game_whose_lives_begin_with_a_no_op_is_saved_exactly() -> None:
    """Also right after the no-op, and it does matter to what follows."""
    env = make("breakout", noop_after_life=True)
    env.reset()
    for action in random_actions(env, seed=0, count=500):
        outcome = env.step(action)
        if outcome.life_lost:
            break
    states = [env.state_dict()]
    env.start_life(outcome.frame)
    states.append(env.state_dict())
    expected = play_lives(env, seed=3, count=400)
    assert sum(isinstance(seen, bytes) for seen in expected) >= 2, "further lives are lost"
    other = make("breakout", seed=77, noop_after_life=True)
    other.load_state_dict(pickle.loads(pickle.dumps(states[1])))
    assert play_lives(other, seed=3, count=400) == expected
    other.load_state_dict(states[0])
    assert play_lives(other, seed=3, count=400) != expected
    other.load_state_dict(states[0])
    other.start_life(outcome.frame)
    assert play_lives(other, seed=3, count=400) == expected


@pytest.mark.parametrize("game", ["assault", "kung_fu_master", "breakout"])
def test_a_game_does_not_depend_on_the_games_before(game: str) -> None:
    """Evaluations reuse their emulators, and must be functions of the seed and the step alone."""
    env, fresh = played(game, seed=0, steps=500), make(game)
    for each in (env, fresh):
        each.seed(np.random.default_rng(50))
    np.testing.assert_array_equal(env.reset(), fresh.reset())
    for t, action in enumerate(random_actions(env, seed=0, count=60)):
        assert same(env.step(action), fresh.step(action)), t
