"""Augmentation, pixel by pixel: shifts against padding with the border and cutting out, intensity against a loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

import meanq.learning.agent
from meanq.config.errors import ConfigError
from meanq.learning.augmentation import random_intensity, random_shift
from meanq.learning.build import check_augmentation
from meanq.learning.learner import Learner
from meanq.learning.networks import Params, QNetwork
from meanq.learning.values import make_value_form
from meanq.replay.buffer import Batch
from tests.helpers import algo_config, make_agent, network_config, random_params
from tests.short_runs import make_run


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cut_out(image: np.ndarray, pixels: int, down: int, right: int) -> np.ndarray:
    """One image [C, H, W], padded with its border and cut out, `down` and `right` of the middle."""
    padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
    shifted = np.zeros_like(image)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            shifted[:, y, x] = padded[:, pixels + down + y, pixels + right + x]
    return shifted


def random_images(*shape: int, dtype: torch.dtype = torch.uint8, seed: int = 0) -> Tensor:
    if dtype == torch.float32:
        return torch.randn(shape, generator=seeded(seed))
    return torch.randint(0, 2 if dtype == torch.bool else 256, shape, generator=seeded(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        ((1, 6, 3, 7, 7), 2),
        ((3, 4, 2, 6, 9), 4),
        ((2, 5, 1, 9, 4), 3),  # as far as a 4 pixels wide image may move
        ((8, 3, 5, 5), 1),
    ],
    ids=str,
)
def test_a_shift_is_padding_and_cutting_out(shape: tuple[int, ...], pixels: int, dtype: torch.dtype) -> None:
    images = random_images(*shape, dtype=dtype)
    before = images.clone()
    shifted = random_shift(images, pixels, seeded(7))
    count = images[..., 0, 0, 0].numel()
    down, right = torch.randint(-pixels, pixels + 1, (2, count, 1), generator=seeded(7)).squeeze(-1).tolist()
    flat = images.reshape(count, *shape[-3:]).numpy()
    expected = np.stack([cut_out(flat[n], pixels, down[n], right[n]) for n in range(count)]).reshape(shape)
    assert shifted.shape == images.shape and shifted.dtype == dtype
    assert np.array_equal(shifted.numpy(), expected)
    assert torch.equal(images, before) and not torch.equal(shifted, images)


def coordinates(height: int, width: int) -> Tensor:
    """An image [1, H, W] whose pixels all say where they were."""
    return (100.0 * torch.arange(height)[:, None] + torch.arange(width))[None]


def test_every_image_has_its_own_shift_and_all_occur_alike() -> None:
    pixels, rows, size = 3, 4, 600
    images = coordinates(9, 11).expand(rows, size, 1, 9, 11)
    middle = random_shift(images, pixels, seeded(1))[..., 0, 4, 5]
    down, right = middle // 100 - 4, middle % 100 - 5
    assert down.min() == right.min() == -pixels and down.max() == right.max() == pixels
    combinations = ((down + pixels) * (2 * pixels + 1) + right + pixels).long()
    counts = np.bincount(combinations.flatten().numpy(), minlength=49)
    assert len(counts) == 49 and chisquare(counts).pvalue > 1e-3
    assert (combinations[0] == combinations[1]).float().mean() < 0.1  # rows are not shifted alike
    assert (combinations[:, 1:] == combinations[:, :-1]).float().mean() < 0.1  # nor neighbours in a row


def test_the_frames_of_a_stack_move_together() -> None:
    channels = 10_000.0 * torch.arange(4).view(4, 1, 1)
    shifted = random_shift((coordinates(8, 6) + channels).expand(2, 50, 4, 8, 6), 2, seeded(2))
    assert torch.equal(shifted - channels, shifted[:, :, :1].expand_as(shifted))


def test_the_generator_goes_on() -> None:
    images, generator = random_images(1, 20, 2, 8, 8), seeded(3)
    first, second = random_shift(images, 2, generator), random_shift(images, 2, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, random_shift(images, 2, seeded(3)))


# Intensity

SCALE = 0.05


def naive_intensity(images: np.ndarray, draws: np.ndarray, scale: float = SCALE) -> np.ndarray:
    """Images [N, C, H, W] under standard normal draws [N], one pixel at a time."""
    brighter = np.zeros(images.shape)
    for n, image in enumerate(images):
        factor = 1 + scale * min(max(float(draws[n]), -2.0), 2.0)
        for c, y, x in np.ndindex(image.shape):
            brighter[n, c, y, x] = float(image[c, y, x]) * factor
    return brighter


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 1, 3, 4), (5, 9, 2, 4, 3), (40, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("scale", [SCALE, 0.5])
def test_each_image_has_one_factor(scale: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images = random_images(*shape, dtype=dtype)
    before, generator = images.clone(), seeded(4)
    brighter = random_intensity(images, scale, generator)
    draws = torch.randn(shape[:-3], generator=seeded(4)).flatten().numpy()
    assert draws.max() > 2 and draws.min() < -2, "some are cut off"
    expected = naive_intensity(images.reshape(-1, *shape[-3:]).numpy(), draws, scale).reshape(shape)
    assert brighter.dtype == torch.float32 and brighter.shape == images.shape
    np.testing.assert_allclose(brighter.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(images, before)
    assert not torch.equal(random_intensity(images, scale, generator), brighter)  # the generator goes on


# Learning from augmented images

SHAPE, ACTIONS, BATCH = (4, 10, 10), 3, 24


class Watched(QNetwork):
    """Keeps the states that it is shown."""

    def __init__(self) -> None:
        super().__init__(SHAPE, ACTIONS, network_config("minatar"), dueling=True, scale=1 / 255)
        self.shown: list[Tensor] = []

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        self.shown.append(states.clone())
        return super().__call__(params, states)


def make_batch(rows: int, **changes: Any) -> Batch:
    generator = seeded(5)
    fields: dict[str, Any] = {
        "indices": np.zeros((rows, BATCH), dtype=np.int64),
        "states": random_images(rows, BATCH, *SHAPE, seed=10),
        "actions": torch.randint(ACTIONS, (rows, BATCH), generator=generator),
        "returns": torch.randn(rows, BATCH, generator=generator),
        "discounts": torch.full((rows, BATCH), 0.9),
        "next_states": random_images(rows, BATCH, *SHAPE, seed=11),
        "weights": torch.ones(rows, BATCH),
    }
    return Batch(**fields | changes)


def shifts_of(shown: Tensor, images: Tensor, pixels: int) -> list[tuple[int, int]]:
    """By how much each image was moved, found by trying all shifts."""
    assert shown.dtype == images.dtype and shown.numel() == images.numel()
    found = []
    for moved, image in zip(shown.reshape(-1, *SHAPE).numpy(), images.reshape(-1, *SHAPE).numpy(), strict=True):
        padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
        fitting = [
            (y - pixels, x - pixels)
            for y in range(2 * pixels + 1)
            for x in range(2 * pixels + 1)
            if np.array_equal(moved, padded[:, y : y + SHAPE[1], x : x + SHAPE[2]])
        ]
        assert len(fitting) == 1, "this is no shift of the image"
        found += fitting
    return found


@pytest.mark.parametrize(("minibatch", "rows"), [("independent", 2), ("shared", 1)])
def test_states_and_next_states_are_shifted_independently(minibatch: str, rows: int) -> None:
    """With Double DQN, too: both the weights that choose and those that evaluate see the same next states."""
    algo = algo_config("meanq", ensemble_size=2, minibatch=minibatch, double=True, random_shift=2)
    network = Watched()
    agent = make_agent(algo, network, random_params(network, 2, 0))
    batch = make_batch(rows)
    agent.learn(batch)
    evaluated, chosen, learned = network.shown
    assert torch.equal(evaluated, chosen)
    next_shifts, shifts = shifts_of(evaluated, batch.next_states, 2), shifts_of(learned, batch.states, 2)
    for one in (next_shifts, shifts):
        assert len(set(one)) > 10  # of 25
    same = sum(a == b for a, b in zip(shifts, next_shifts, strict=True))
    assert same < len(shifts) / 4
    network.shown.clear()
    agent.learn(batch)
    assert shifts_of(network.shown[-1], batch.states, 2) != shifts


def seen_in_learning(batch: Batch, **changes: Any) -> tuple[Tensor, Tensor]:
    """States and next states as the networks are shown them; noise of seed 6."""
    network = Watched()
    agent = make_agent(algo_config("meanq", ensemble_size=2, **changes), network, random_params(network, 2, 0), 6)
    agent.learn(batch)
    evaluated, learned = network.shown
    return learned.reshape(batch.states.shape), evaluated.reshape(batch.next_states.shape)


def test_states_and_next_states_have_factors_of_their_own() -> None:
    batch, generator = make_batch(2), seeded(6)
    shown = seen_in_learning(batch, random_intensity=SCALE)
    for seen, images in zip(shown, (batch.states, batch.next_states), strict=True):
        draws = torch.randn(2, BATCH, generator=generator).flatten().numpy()
        expected = naive_intensity(images.flatten(0, 1).numpy(), draws)
        np.testing.assert_allclose(seen.flatten(0, 1).numpy(), expected, rtol=1e-5)


def test_images_are_shifted_and_then_brightened() -> None:
    """All shifts are drawn first, so the same seed shifts in the same way without intensity."""
    batch = make_batch(2)
    shifted = seen_in_learning(batch, random_shift=2)
    both = seen_in_learning(batch, random_shift=2, random_intensity=SCALE)
    generator = seeded(6)
    for images in (batch.states, batch.next_states):
        random_shift(images, 2, generator)
    for moved, seen in zip(shifted, both, strict=True):
        draws = torch.randn(2, BATCH, generator=generator).flatten().numpy()
        expected = naive_intensity(moved.flatten(0, 1).numpy(), draws)
        np.testing.assert_allclose(seen.flatten(0, 1).numpy(), expected, rtol=1e-5)


def test_the_same_image_is_shifted_differently_as_state_and_as_next_state() -> None:
    images = random_images(1, BATCH, *SHAPE)
    network = Watched()
    agent = make_agent(algo_config("dqn", random_shift=2), network, random_params(network, 1, 0))
    agent.learn(make_batch(1, states=images, next_states=images))
    evaluated, learned = network.shown
    assert not torch.equal(evaluated, learned)


def test_the_callers_batch_stays_as_it_was() -> None:
    batch, again = make_batch(2), make_batch(2)
    states, next_states = batch.states, batch.next_states
    network = Watched()
    make_agent(algo_config("meanq", ensemble_size=2, random_shift=2), network, random_params(network, 2, 0)).learn(
        batch
    )
    assert batch.states is states and batch.next_states is next_states
    assert torch.equal(batch.states, again.states) and torch.equal(batch.next_states, again.next_states)


@pytest.mark.parametrize(("minibatch", "rows"), [("independent", 2), ("shared", 1)])
def test_without_shifts_the_batch_is_left_alone_and_nothing_is_drawn(
    minibatch: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> Tensor:
        raise AssertionError("not to be called")

    for function in ("random_shift", "random_intensity"):
        monkeypatch.setattr(meanq.learning.agent, function, fail)
    algo = algo_config("meanq", ensemble_size=2, minibatch=minibatch)
    assert algo.random_shift == algo.random_intensity == 0  # the default
    network = Watched()
    agent = make_agent(algo, network, random_params(network, 2, 0))
    generator, batch = agent.state_dict()["generator"], make_batch(rows)
    agent.learn(batch)
    evaluated, learned = network.shown
    assert torch.equal(evaluated.reshape(batch.next_states.shape), batch.next_states)
    assert torch.equal(learned.reshape(batch.states.shape), batch.states)
    assert torch.equal(agent.state_dict()["generator"], generator)


def test_acting_sees_the_image_as_it_is() -> None:
    network = Watched()
    algo = algo_config("meanq", ensemble_size=2, random_shift=2, random_intensity=SCALE)
    agent = make_agent(algo, network, random_params(network, 2, 0))
    generator, state = agent.state_dict()["generator"], random_images(1, *SHAPE)
    for explore in (False, True):
        agent.values(state.numpy(), explore=explore)
        assert torch.equal(network.shown.pop(), state)
    assert torch.equal(agent.state_dict()["generator"], generator)


# What is refused


def test_states_that_are_no_images_cannot_be_shifted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo\.random_shift=4: .*are no images; write algo\.random_shift=0"):
        make_run(tmp_path, "env=chain", "algo.random_shift=4", "threads=1")


def test_a_shift_of_the_whole_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo\.random_shift=10: images are 10x10; write less than that"):
        make_run(tmp_path, "env=minatar/asterix", "algo.random_shift=10", "threads=1")
    with pytest.raises(ConfigError, match=r"algo\.random_shift=-1: write 0 or more"):
        make_run(tmp_path, "env=minatar/asterix", "algo.random_shift=-1", "threads=1")


def test_the_shorter_side_limits_the_shift() -> None:
    for shape in ((4, 10, 6), (4, 6, 10)):
        check_augmentation(algo_config("meanq", random_shift=5), shape)
        with pytest.raises(ConfigError, match="write less than that"):
            check_augmentation(algo_config("meanq", random_shift=6), shape)
    check_augmentation(algo_config("meanq", random_shift=0), (8,))


@pytest.mark.parametrize("changes", [{"random_shift": 2}, {"random_intensity": SCALE}], ids=str)
def test_values_of_augmented_next_states_are_not_kept(changes: dict[str, Any]) -> None:
    """They differ from draw to draw."""
    for algo, pays in ((algo_config("meanq"), True), (algo_config("meanq", **changes), False)):
        network = Watched()
        agent = make_agent(algo, network, random_params(network, algo.ensemble_size, 0))
        assert Learner(algo, network, make_value_form(algo, torch.device("cpu"))).caching_pays == pays
        assert agent.caches_targets == pays
