"""Replay against a list of episodes: what can be drawn, what is drawn, and how often."""

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from meanq.config.schema import EpsilonConfig
from meanq.envs import Environment, FrameStack, Step
from meanq.replay.buffer import Batch, BernoulliMask, Replay, replay_bytes
from meanq.training.session import Session
from tests.helpers import compose
from tests.short_runs import SHORT, SilentReporter, make_run

VECTOR = ((3,), np.dtype(np.float32))
IMAGE = ((2, 2, 3), np.dtype(np.uint8))


def make_replay(capacity: int, **changes: Any) -> Replay:
    arguments: dict[str, Any] = {
        "capacity": capacity,
        "frame_shape": VECTOR[0],
        "frame_dtype": VECTOR[1],
        "stack": 1,
        "multi_step": 1,
        "discount": 0.9,
        "priority_trees": 1,
        "prioritized": True,
        "priority_exponent": 1.0,
        "generator": np.random.default_rng(3),
        "device": torch.device("cpu"),
    }
    return Replay(**arguments | changes)


def numbered_frame(number: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A frame that no other number has, never blank, and whose parts all differ."""
    frame = np.zeros(int(np.prod(shape)), dtype=dtype)
    frame[:3] = [number % 250 + 1, number // 250 + 2, 255]
    frame[3:] = np.arange(len(frame) - 3) + number % 100
    return frame.reshape(shape)


def number_of(state: np.ndarray, shape: tuple[int, ...]) -> int:
    """The number of a state's newest frame."""
    low, high = state[-shape[0] :].ravel()[:2]
    return int(low) - 1 + 250 * (int(high) - 2)


@dataclass
class Episode:
    """Everything that happened, kept for good."""

    first: int  # the number of the first frame
    frames: list[np.ndarray]
    before: list[np.ndarray] = field(default_factory=list)  # what its first states show of the past
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminal: bool = False
    truncated: bool = False


@dataclass
class NaiveReplay:
    """What Replay promises, with loops over a list of episodes."""

    capacity: int
    stack: int
    multi_step: int
    discount: float
    episodes: list[Episode] = field(default_factory=list)
    newest: int = -1  # the number of the frame stored last

    def start(self, frame: np.ndarray, *, keep_stack: bool = False) -> None:
        self.newest += 1
        before = [*self.episodes[-1].before, *self.episodes[-1].frames] if keep_stack else []
        self.episodes.append(Episode(first=self.newest, frames=[frame.copy()], before=before))

    def append(self, action: int, reward: float, next_frame: np.ndarray, *, terminal: bool, truncated: bool) -> None:
        episode = self.episodes[-1]
        episode.actions.append(action)
        episode.rewards.append(reward)
        episode.terminal, episode.truncated = terminal, truncated
        if not terminal:
            self.newest += 1
            episode.frames.append(next_frame.copy())

    def drawable(self) -> dict[int, tuple[Episode, int]]:
        """Frame number -> episode and time, for all transitions that can be drawn. The guarantee, exactly:

        A transition can be drawn from the moment that its return is known (M rewards, or its episode's end) until
        more than `capacity` + 1 frames newer than its own are stored. A frame is stored for every step, and one more
        for an episode that is truncated. So the last `capacity` + 1 transitions are there, except those that still
        wait for rewards (M - 1 at most), and except one for every truncated episode among them.
        """
        return {
            episode.first + t: (episode, t)
            for episode in self.episodes
            for t in range(len(episode.actions))
            if self.newest - (episode.first + t) <= self.capacity + 1
            and (t + self.multi_step <= len(episode.actions) or episode.terminal or episode.truncated)
        }

    def state(self, episode: Episode, t: int) -> np.ndarray:
        """The last frames of the episode up to time t, oldest first, blank before its start unless that was kept."""
        blanks = [np.zeros_like(episode.frames[0])] * self.stack
        return np.concatenate([*blanks, *episode.before, *episode.frames[: t + 1]][-self.stack :])

    def transition(self, episode: Episode, t: int) -> tuple[np.ndarray, int, float, float, np.ndarray | None]:
        """State, action, M-step return, discount, next state (None after a terminal)."""
        total, factor, now = 0.0, 1.0, t
        while now < t + self.multi_step and now < len(episode.actions):
            total += factor * episode.rewards[now]
            factor *= self.discount
            now += 1
        state, action = self.state(episode, t), episode.actions[t]
        if episode.terminal and now == len(episode.actions):
            return state, action, total, 0.0, None
        return state, action, total, factor, self.state(episode, now)


def draw_everything(replay: Replay, rows: int = 1) -> Batch:
    """Minibatches that have every transition, where priorities are equal: each share of the mass is half a
    transition's, so one share at least lies wholly within each."""
    return replay.sample(rows, 2 * len(replay), 0.4)


def check_everything(replay: Replay, naive: NaiveReplay, shape: tuple[int, ...], dtype: np.dtype) -> None:
    expected = naive.drawable()
    assert len(replay) == len(expected)
    if not expected:
        return
    batch = draw_everything(replay)
    states, next_states = batch.states[0].numpy(), batch.next_states[0].numpy()
    assert states.dtype == next_states.dtype == dtype
    drawn = [number_of(state, shape) for state in states]
    assert set(drawn) == set(expected)
    assert len(set(batch.indices[0])) == len(expected)  # a slot stands for one transition
    transitions = {number: naive.transition(*where) for number, where in expected.items()}
    for i, number in enumerate(drawn):
        state, action, total, discount, next_state = transitions[number]
        assert states[i].shape == state.shape and (states[i] == state).all()
        assert batch.actions[0, i] == action
        assert abs(batch.returns[0, i] - total) < 1e-5
        assert abs(batch.discounts[0, i] - discount) < 1e-6
        assert next_state is None or (next_states[i] == next_state).all()


@st.composite
def episode_lists(draw: st.DrawFn) -> list[tuple[int, str, bool]]:
    """Lengths, ends, and whether the next episode keeps the stack. An abandoned episode is followed by another without
    having ended.
    """
    ends = st.sampled_from(["terminal", "truncated", "terminal", "truncated", "both", "abandoned"])
    return draw(st.lists(st.tuples(st.integers(1, 12), ends, st.booleans()), min_size=1, max_size=10))


@given(
    episodes=episode_lists(),
    multi_step=st.integers(1, 5),
    stack=st.integers(1, 4),
    spare=st.integers(0, 12),
    frames=st.sampled_from([VECTOR, IMAGE]),
    prioritized=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None, report_multiple_bugs=False)
def test_every_transition_is_as_in_the_list_of_episodes(
    episodes: list[tuple[int, str, bool]],
    multi_step: int,
    stack: int,
    spare: int,
    frames: tuple[tuple[int, ...], np.dtype],
    prioritized: bool,
    seed: int,
) -> None:
    shape, dtype = frames
    capacity = multi_step + spare  # what the configuration allows at least
    generator = np.random.default_rng(seed)
    replay = make_replay(
        capacity,
        frame_shape=shape,
        frame_dtype=dtype,
        stack=stack,
        multi_step=multi_step,
        prioritized=prioritized,
        generator=generator,
    )
    naive = NaiveReplay(capacity, stack, multi_step, 0.9)
    check_every = int(generator.integers(1, 5))
    reused = np.zeros(shape, dtype=dtype)  # an environment may return the same array each time
    steps, keep = 0, False
    for length, end, keep_next in episodes:
        reused[:] = numbered_frame(naive.newest + 1, shape, dtype)
        replay.start(reused, keep_stack=keep)
        naive.start(reused, keep_stack=keep)
        keep = keep_next
        check_everything(replay, naive, shape, dtype)
        for t in range(length):
            reused[:] = numbered_frame(naive.newest + 1, shape, dtype)
            last = t == length - 1
            step = {
                "action": int(generator.integers(5)),
                "reward": float(generator.integers(-3, 4)),
                "next_frame": reused,
                "terminal": last and end in ("terminal", "both"),
                "truncated": last and end in ("truncated", "both"),
            }
            replay.append(**step)
            naive.append(**step)
            steps += 1
            if last or steps % check_every == 0:
                check_everything(replay, naive, shape, dtype)


def test_the_property_above_sees_wraps_stacks_and_every_end() -> None:
    """The model itself on a case worked out by hand: capacity 2, so 5 slots, stack 2, two steps."""
    naive = NaiveReplay(capacity=2, stack=2, multi_step=2, discount=0.5)
    frames = [np.array([float(i + 1)]) for i in range(9)]
    naive.start(frames[0])
    naive.append(0, 8.0, frames[1], terminal=False, truncated=False)
    assert naive.drawable() == {}  # waits for its second reward
    naive.append(1, 4.0, frames[2], terminal=False, truncated=True)
    state, action, total, discount, next_state = naive.transition(*naive.drawable()[0])
    assert (state.tolist(), action, total, discount) == ([0, 1], 0, 10.0, 0.25)
    assert next_state is not None and next_state.tolist() == [2, 3]
    state, action, total, discount, next_state = naive.transition(*naive.drawable()[1])
    assert (state.tolist(), action, total, discount) == ([1, 2], 1, 4.0, 0.5)
    assert next_state is not None and next_state.tolist() == [2, 3]
    naive.start(frames[3])
    assert set(naive.drawable()) == {0, 1}
    naive.append(1, 2.0, frames[4], terminal=False, truncated=False)
    assert set(naive.drawable()) == {1}
    naive.append(1, 2.0, frames[5], terminal=True, truncated=False)
    assert set(naive.drawable()) == {1, 3, 4}
    assert naive.transition(*naive.drawable()[4])[2:] == (2.0, 0.0, None)
    assert naive.transition(*naive.drawable()[3])[2:] == (3.0, 0.0, None)
    naive.start(frames[6], keep_stack=True)
    naive.append(1, 2.0, frames[7], terminal=True, truncated=False)
    assert naive.transition(*naive.drawable()[5])[0].tolist() == [5, 7]  # the frame after a terminal is not shown


def test_a_kept_stack_when_the_ring_wraps_around() -> None:
    """8 slots, and lives of one to six steps with a game over now and then: starts come at every slot."""
    replay, naive = make_replay(3, stack=4), NaiveReplay(3, 4, 1, 0.9)
    generator = np.random.default_rng(0)
    keep, kept_at = False, set()
    for _ in range(60):
        frame = numbered_frame(naive.newest + 1, *VECTOR)
        for model in (replay, naive):
            model.start(frame, keep_stack=keep)
        if keep:
            kept_at.add(naive.newest % 8)
        length = int(generator.integers(1, 7))
        for t in range(length):
            frame = numbered_frame(naive.newest + 1, *VECTOR)
            for model in (replay, naive):
                model.append(0, 1.0, frame, terminal=t == length - 1, truncated=False)
            check_everything(replay, naive, *VECTOR)
        keep = bool(generator.random() < 0.8)
    assert kept_at == set(range(8))


def test_a_full_replay_holds_its_capacity() -> None:
    """Without truncations: `capacity` + 1 transitions, and one more between a terminal and the next start."""
    replay = make_replay(10, stack=4)
    frame = np.ones(3, dtype=np.float32)
    replay.start(frame)
    for step in range(1, 101):
        terminal = step % 7 == 0
        replay.append(0, 0.0, frame, terminal=terminal, truncated=False)
        assert len(replay) == min(step, 12 if terminal else 11)
        if terminal:
            replay.start(frame)
            assert len(replay) == min(step, 11)


# Priorities


@dataclass
class NaivePriorities:
    """Priorities by frame number; one dictionary per member, or one for all."""

    trees: int
    prioritized: bool
    priorities: list[dict[int, float]] = field(init=False)
    maximum: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.priorities = [{} for _ in range(self.trees)]
        self.maximum = [1.0] * self.trees

    def keep(self, numbers: set[int]) -> None:
        """The transitions that can be drawn now; new ones get the highest priority that there was."""
        for tree, known in enumerate(self.priorities):
            self.priorities[tree] = {n: known.get(n, self.maximum[tree]) for n in numbers}

    def update(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        if not self.prioritized:
            return
        rows = [(range(len(numbers)), 0)] if self.trees == 1 else [([k], k) for k in range(self.trees)]
        for members, tree in rows:
            drawn: dict[int, list[float]] = {}
            for k in members:
                for number, priority in zip(numbers[k], priorities[k], strict=True):
                    drawn.setdefault(int(number), []).append(float(priority))
            for number, values in drawn.items():
                priority = max(sum(values) / len(values), 1e-8)
                self.priorities[tree][number] = priority
                self.maximum[tree] = max(self.maximum[tree], priority)


def numbers_of(batch: Batch) -> np.ndarray:
    """[R, B], of vector frames with stack 1."""
    frames = batch.states.numpy()
    return (frames[..., 0] - 1 + 250 * (frames[..., 1] - 2)).astype(int)


SHARINGS = {  # trees, rows, prioritized
    "per member": (3, 3, True),
    "one tree, one minibatch": (1, 1, True),
    "one tree, three minibatches": (1, 3, True),
    "uniform": (1, 3, False),
}


@pytest.mark.parametrize("sharing", SHARINGS)
@given(
    rounds=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    capacity=st.integers(1, 20),
    exponent=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, report_multiple_bugs=False)
def test_priorities_draws_and_weights_follow_the_formulas(
    sharing: str, rounds: list[int], capacity: int, exponent: float, seed: int
) -> None:
    """In each round some steps are stored, a large minibatch is drawn and a small one gets new priorities."""
    trees, rows, prioritized = SHARINGS[sharing]
    generator = np.random.default_rng(seed)
    replay = make_replay(capacity, priority_trees=trees, prioritized=prioritized, generator=generator)
    contents, naive = NaiveReplay(capacity, 1, 1, 0.9), NaivePriorities(trees, prioritized)
    for model in (replay, contents):
        model.start(numbered_frame(0, *VECTOR))
    for steps in rounds:
        for _ in range(steps):
            frame = numbered_frame(contents.newest + 1, *VECTOR)
            for model in (replay, contents):
                model.append(0, 0.0, frame, terminal=False, truncated=False)
            naive.keep(set(contents.drawable()))

        size = 300
        batch = replay.sample(rows, size, exponent)
        drawn = numbers_of(batch)
        assert drawn.shape == (rows, size)
        for row in range(rows):
            priorities = naive.priorities[row if trees > 1 else 0]
            total = sum(priorities.values())
            # One draw from each of `size` equal shares of the mass: a transition with n shares' worth of mass has
            # n - 2 shares at least wholly within it, and n + 2 at most that touch it.
            for number, priority in priorities.items():
                assert abs((drawn[row] == number).sum() - size * priority / total) <= 2 + 1e-6
            assert set(drawn[row]) <= set(priorities)
            weights = np.ones(size)
            if prioritized:
                weights = np.array([(len(priorities) * priorities[n] / total) ** -exponent for n in drawn[row]])
                weights /= weights.max()
            np.testing.assert_allclose(batch.weights[row].numpy(), weights, rtol=1e-5)

        # Members see different errors at the same transition; one of them is none at all.
        small = replay.sample(rows, 6, exponent)
        numbers = numbers_of(small)
        errors = generator.integers(0, 30, (rows, 1000)) / 10 * (generator.random((rows, 1000)) < 0.8)
        new = np.take_along_axis(errors, numbers, axis=1)
        replay.update_priorities(small.indices, new)
        naive.update(numbers, new)


def fill(replay: Replay, count: int) -> None:
    """Transitions 0 .. count - 1, and the frame that the last one led to."""
    replay.start(numbered_frame(0, *VECTOR))
    for number in range(count):
        replay.append(0, 0.0, numbered_frame(number + 1, *VECTOR), terminal=False, truncated=False)


def test_a_slot_drawn_twice_from_a_shared_tree_gets_the_mean() -> None:
    replay = make_replay(4)
    fill(replay, 2)
    batch = draw_everything(replay)
    zero, one = (batch.indices[numbers_of(batch) == number][0] for number in (0, 1))
    replay.update_priorities(np.array([[zero, zero], [one, zero]]), np.array([[1.0, 2.0], [1.0, 6.0]]))
    drawn = numbers_of(replay.sample(1, 400, 0.4))[0]
    assert np.bincount(drawn).tolist() == [300, 100]  # (1 + 2 + 6) / 3 against 1


def test_the_exponent_applies_to_the_mean_error() -> None:
    replay = make_replay(4, priority_exponent=0.5)
    fill(replay, 2)
    batch = draw_everything(replay)
    zero, one = (batch.indices[numbers_of(batch) == number][0] for number in (0, 1))
    replay.update_priorities(np.array([[zero, zero], [one, zero]]), np.array([[1.0, 2.0], [12.0, 6.0]]))
    drawn = numbers_of(replay.sample(1, 300, 0.4))[0]
    assert np.bincount(drawn).tolist() == [100, 200]  # sqrt(3) against sqrt(12)


@pytest.mark.parametrize("trees", [1, 2])
def test_a_transition_without_error_can_still_be_drawn(trees: int) -> None:
    replay = make_replay(4, priority_trees=trees)
    fill(replay, 4)
    batch = draw_everything(replay, rows=trees)
    replay.update_priorities(batch.indices, np.zeros(batch.indices.shape))
    batch = draw_everything(replay, rows=trees)
    assert all(set(row) == {0, 1, 2, 3} for row in numbers_of(batch))
    assert (batch.weights == 1).all()


def test_rows_draw_independently_and_in_proportion() -> None:
    """50,000 stratified draws with 3 rows of 10 from one tree; the statistic rejects other priorities."""
    replay = make_replay(40)
    fill(replay, 40)
    generator = np.random.default_rng(1)
    batch = draw_everything(replay)
    priorities = generator.uniform(0.5, 2.0, 41)
    numbers = numbers_of(batch)
    replay.update_priorities(batch.indices, priorities[numbers])
    counts, same = np.zeros(40), 0
    calls = 50_000 // 30
    for _ in range(calls):
        drawn = numbers_of(replay.sample(3, 10, 0.4))
        counts += np.bincount(drawn.ravel(), minlength=40)
        same += int((drawn[0] == drawn[1]).all())
    expected = priorities[:40] / priorities[:40].sum() * counts.sum()
    assert chisquare(counts, expected).pvalue > 1e-3
    assert chisquare(counts, np.full(40, counts.sum() / 40)).pvalue < 1e-6
    assert same < calls / 100


def test_weights_are_normalised_within_a_row_and_rows_need_not_agree() -> None:
    """Two members with opposite priorities: both have a weight of 1, which is not the same number unnormalised."""
    replay = make_replay(4, priority_trees=2)
    fill(replay, 2)
    batch = replay.sample(2, 4, 1.0)
    high_low = np.array([[100.0, 1.0], [2.0, 1.0]])
    replay.update_priorities(batch.indices, np.take_along_axis(high_low, numbers_of(batch), axis=1))
    batch = replay.sample(2, 500, 1.0)
    drawn, weights = numbers_of(batch), batch.weights.numpy()
    assert weights.max(axis=1).tolist() == [1.0, 1.0]
    np.testing.assert_allclose(weights[0][drawn[0] == 0], 0.01, rtol=1e-5)
    np.testing.assert_allclose(weights[1][drawn[1] == 0], 0.5, rtol=1e-5)


# Memory


def arrays(thing: object) -> Iterator[np.ndarray]:
    for value in vars(thing).values():
        if isinstance(value, torch.Tensor):
            yield value.numpy()
        elif isinstance(value, np.ndarray):
            yield value
        elif type(value).__module__.startswith("meanq."):
            yield from arrays(value)


@pytest.mark.parametrize("frames", [VECTOR, IMAGE, ((1, 84, 84), np.dtype(np.uint8))], ids=["vector", "image", "atari"])
@pytest.mark.parametrize(("capacity", "stack", "trees"), [(1, 1, 1), (11, 4, 1), (12, 4, 5), (300, 1, 5)])
def test_replay_bytes_is_the_memory_held(
    frames: tuple[tuple[int, ...], np.dtype], capacity: int, stack: int, trees: int
) -> None:
    shape, dtype = frames
    replay = make_replay(capacity, frame_shape=shape, frame_dtype=dtype, stack=stack, priority_trees=trees)
    held = {array.ctypes.data: array.nbytes for array in arrays(replay)}  # two names for one memory count once
    per_tree = 3 * 8 * trees  # each tree's maximum, its root and its first leaf
    assert sum(held.values()) - per_tree == replay_bytes(capacity, shape, dtype, stack, trees)
    masked = make_replay(
        capacity,
        frame_shape=shape,
        frame_dtype=dtype,
        stack=stack,
        priority_trees=trees,
        mask=BernoulliMask(3, 0.5, np.random.default_rng(0)),
    )
    held = {array.ctypes.data: array.nbytes for array in arrays(masked)}
    assert sum(held.values()) - per_tree == replay_bytes(capacity, shape, dtype, stack, trees, masks=3)


# The state acted on


class Lives(Environment):
    """A random game with lives, deaths and a step limit, whose frames are all different; it reuses its frame array."""

    num_actions = 3

    def __init__(self, id: str, generator: np.random.Generator) -> None:
        super().__init__(generator)
        self.frame_shape, self.frame_dtype = {"vector": VECTOR, "image": IMAGE}[id]
        self._number = -1
        self._steps = 0
        self._frame = np.zeros(self.frame_shape, dtype=self.frame_dtype)

    def _next(self) -> np.ndarray:
        self._number += 1
        self._frame[:] = numbered_frame(self._number, self.frame_shape, self.frame_dtype)
        return self._frame

    def reset(self) -> np.ndarray:
        self._steps = 0
        return self._next()

    def step(self, action: int) -> Step:
        self._steps += 1
        fate = self.generator.random()
        return Step(self._next(), 1.0, terminal=fate < 0.1, truncated=self._steps == 9, life_lost=0.1 < fate < 0.3)


@pytest.mark.parametrize("kind", ["vector", "image"])
@pytest.mark.parametrize("stack", [1, 3])
def test_stored_states_are_the_states_acted_on(kind: str, stack: int) -> None:
    """Through the training loop itself: what the network is shown when acting is what replay gives back."""
    config = compose("algo=meanq", "env=chain", "algo.ensemble_size=2", "total_steps=120", "probe.states=1")
    env = dataclasses.replace(config.env, kind=f"{__name__}.Lives", id=kind, stack=stack, options={})
    algo = dataclasses.replace(
        config.algo, epsilon=EpsilonConfig(start=0.0, end=0.0, steps=1), exploration="episode_member"
    )
    run = Session(dataclasses.replace(config, env=env, algo=algo, threads=torch.get_num_threads()))
    acted: list[np.ndarray] = []
    values = run.loop.agent.values

    def spy(states: np.ndarray, *, explore: bool = False) -> np.ndarray:
        acted.extend(states.copy())
        return values(states, explore=explore)

    run.loop.agent.values = spy  # type: ignore[method-assign]
    run.loop.start_game()
    for run.loop.step in range(1, 101):
        run.loop.interact()
    assert len(acted) == 100
    by_number = {number_of(state, run.loop.env.frame_shape): state for state in acted}
    batch = draw_everything(run.loop.replay, rows=algo.ensemble_size)
    seen = set()
    for state in batch.states[0].numpy():
        number = number_of(state, run.loop.env.frame_shape)
        np.testing.assert_array_equal(state, by_number[number])
        seen.add(number)
    assert len(seen) == len(run.loop.replay) == 100
    starts = [state for state in acted if stack > 1 and not state[: -run.loop.env.frame_shape[0]].any()]
    assert stack == 1 or len(starts) > 15  # lives were lost and games restarted, and the stack was blank then


@pytest.mark.parametrize("over_lives", [False, True])
def test_what_the_states_after_a_lost_life_show(over_lives: bool, tmp_path: Path) -> None:
    """Random play in Breakout, through the training loop; with the option a no-op follows a lost life as well."""
    option = str(over_lives).lower()
    run = make_run(
        tmp_path,
        *("env=breakout", f"env.stack_over_lives={option}", f"env.options.noop_after_life={option}"),
        *("algo=dqn", "network=data_efficient", "total_steps=500", "algo.first_update=500", "algo.random_steps=500"),
        *("algo.replay_capacity=300", "algo.prioritized=false", "probe.states=1", "compile=false", "threads=1"),
    )
    outcomes: list[Step] = []
    firsts: dict[int, np.ndarray] = {}  # by step, the frame that a life begins with
    step, start_life = run.loop.env.step, run.loop.env.start_life

    def spy_step(action: int) -> Step:
        outcomes.append(step(action))
        return outcomes[-1]

    def spy_start(frame: np.ndarray) -> np.ndarray:
        firsts[len(acted)] = start_life(frame).copy()
        return firsts[len(acted)]

    run.loop.env.step, run.loop.env.start_life = spy_step, spy_start  # type: ignore[method-assign]
    acted: list[np.ndarray] = []
    run.loop.start_game()
    for run.loop.step in range(1, 501):
        acted.append(run.loop._frames.state.copy())
        run.loop.interact()
        if run.loop.step % 100 == 0:  # a frame is stored for each step, so that steps number them
            batch = draw_everything(run.loop.replay)
            assert len(set(batch.ids[0])) == min(run.loop.step, 301)
            for number, state in zip(batch.ids[0], batch.states[0].numpy(), strict=True):
                np.testing.assert_array_equal(state, acted[number])
    ends = {t: outcome for t, outcome in enumerate(outcomes[:-1], 1) if outcome.terminal or outcome.life_lost}
    assert sum(outcome.terminal for outcome in ends.values()) >= 2 and len(ends) >= 10
    for t, outcome in ends.items():
        if outcome.life_lost:
            np.testing.assert_array_equal(acted[t][3:], firsts[t])
        if outcome.life_lost and over_lives:
            assert acted[t - 1][1:].any((1, 2)).all()
            np.testing.assert_array_equal(acted[t][:3], acted[t - 1][1:])
        else:
            assert not acted[t][:3].any()


def test_frame_stack_is_blank_before_the_start() -> None:
    frames = FrameStack(3, (2,), np.dtype(np.float32))
    assert frames.start(np.array([1, 2])).tolist() == [0, 0, 0, 0, 1, 2]
    assert frames.push(np.array([3, 4])).tolist() == [0, 0, 1, 2, 3, 4]
    assert frames.push(np.array([5, 6])).tolist() == [1, 2, 3, 4, 5, 6]
    assert frames.push(np.array([7, 8])).tolist() == [3, 4, 5, 6, 7, 8]
    assert frames.start(np.array([9, 9])).tolist() == [0, 0, 0, 0, 9, 9]


# State


def play(replay: Replay, generator: np.random.Generator, first: int, steps: int, shape: tuple, dtype: np.dtype) -> int:
    """Store some steps with random ends; the number of the next frame. Starts in the middle of an episode."""
    number = first
    for _ in range(steps):
        end = generator.random()
        terminal, truncated = end < 0.1, 0.1 <= end < 0.2
        frame = numbered_frame(number, shape, dtype)
        replay.append(int(generator.integers(4)), generator.random(), frame, terminal=terminal, truncated=truncated)
        number += 1
        if terminal or truncated:
            replay.start(numbered_frame(number, shape, dtype))
            number += 1
    return number


@pytest.mark.parametrize("frames", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("steps", [1, 9, 100])  # nothing drawable yet; not full; wrapped
def test_state_round_trip(sharing: str, frames: tuple[tuple[int, ...], np.dtype], steps: int) -> None:
    """A replay that takes the state of another draws the same from then on, whatever happens to the first."""
    trees, rows, prioritized = SHARINGS[sharing]
    shape, dtype = frames

    def fresh(seed: int) -> Replay:
        return make_replay(
            20,
            frame_shape=shape,
            frame_dtype=dtype,
            stack=3,
            multi_step=3,
            priority_trees=trees,
            prioritized=prioritized,
            generator=np.random.default_rng(seed),
        )

    def go_on(replay: Replay) -> list[Batch]:
        generator, batches, first = np.random.default_rng(2), [], number
        for _ in range(15):
            first = play(replay, generator, first, 3, shape, dtype)
            batches.append(replay.sample(rows, 8, 0.4))
            replay.update_priorities(batches[-1].indices, generator.random((rows, 8)) * 3)
        return batches

    original = fresh(0)
    original.start(numbered_frame(0, shape, dtype))
    number = play(original, np.random.default_rng(1), 1, steps, shape, dtype)
    if len(original):
        batch = original.sample(rows, 8, 0.4)
        original.update_priorities(batch.indices, np.full((rows, 8), 2.5))
    state = original.state_dict()
    untouched = copy.deepcopy(state)
    numbers = original.held_frames()
    frames = original.get_frames(numbers)
    expected = go_on(original)

    for given_state in (state, untouched):  # the first: what the original did since is not in it
        other = fresh(99)
        other.start(numbered_frame(5, shape, dtype))
        play(other, np.random.default_rng(8), 6, 30, shape, dtype)
        other.load_state_dict(given_state)
        other.set_frames(numbers, frames)
        for batch, again in zip(expected, go_on(other), strict=True):
            assert np.array_equal(batch.indices, again.indices)
            for name in ("states", "actions", "returns", "discounts", "next_states", "weights"):
                assert torch.equal(getattr(batch, name), getattr(again, name)), name
        assert len(other) == len(original)


@pytest.mark.filterwarnings("error::UserWarning")
def test_frames_in_the_device_s_memory_are_the_same_frames(tmp_path: Path) -> None:
    """The code of a GPU's memory, here with the CPU's: the same tables and weights, saved and restored on the way."""
    for on_device in (False, True):
        root = tmp_path / str(on_device)
        overrides = (*SHORT, "algo=meanq", "algo.replay_capacity=70", f"replay_on_device={on_device}")
        run = make_run(root, *overrides, "checkpoint.every=50")
        assert (run.loop.replay._frames._host is None) == on_device
        with pytest.raises(RuntimeError, match="crash"):
            run.train(CrashAt(130))
        run = make_run(root, *overrides, "checkpoint.every=50")
        run.train(SilentReporter())
        numbers = run.loop.replay.held_frames()
        assert run.loop.replay.get_frames(numbers).any()
    for name in ("evaluations.csv", "training.csv", "probes.npz", "weights.safetensors"):
        left, right = (next((tmp_path / str(on_device)).rglob(name)) for on_device in (False, True))
        assert left.read_bytes() == right.read_bytes(), name


class CrashAt(SilentReporter):
    """Raise after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def progress(self, step: int, *rest: Any) -> None:
        if step == self._step:
            raise RuntimeError("crash")


@pytest.mark.parametrize("steps", [64, 100, 240, 500, None])
def test_the_importance_exponent_rises_over_its_own_horizon(steps: int | None, tmp_path: Path) -> None:
    """Shorter or longer than the run, or its length; then it stays at the end."""
    horizon = "null" if steps is None else steps
    run = make_run(tmp_path, "algo=dqn", *SHORT, f"algo.importance_steps={horizon}", "algo.importance_end=0.9")
    exponents: list[tuple[int, float]] = []
    sample = run.loop.replay.sample

    def spy(rows: int, batch_size: int, importance_exponent: float) -> Batch:
        exponents.append((run.loop.step, importance_exponent))
        return sample(rows, batch_size, importance_exponent)

    run.loop.replay.sample = spy  # type: ignore[method-assign]
    run.train(SilentReporter())
    assert [step for step, _ in exponents] == list(range(64, 241, 2))
    for step, exponent in exponents:
        assert exponent == pytest.approx(0.4 + (0.9 - 0.4) * min(1, step / (steps or 240)), rel=1e-12)
    assert exponents[-1][1] == pytest.approx(0.64 if steps == 500 else 0.9)
