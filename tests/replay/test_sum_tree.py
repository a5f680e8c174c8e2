"""Sum trees against plain running sums, and the distribution of what they draw."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from meanq.replay.sum_tree import SumTrees, tree_bytes

SIZES = [1, 2, 3, 7, 8, 1000]


@dataclass
class NaiveTrees:
    """The same contract with lists and loops."""

    trees: int
    size: int
    priorities: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.priorities = [[0.0] * self.size for _ in range(self.trees)]

    def set(self, leaves: list[list[int]], priorities: list[list[float]]) -> None:
        for tree in range(self.trees):
            for leaf, priority in zip(leaves[tree], priorities[tree], strict=True):
                self.priorities[tree][leaf] = priority

    def find(self, tree: int, mass: float) -> int:
        running = 0.0
        for leaf, priority in enumerate(self.priorities[tree]):
            running += priority
            if running > mass:
                return leaf
        raise AssertionError("mass is not below the total")


# Small whole numbers: every sum is exact in any order, so that leaves at the very edge of a mass can be compared. Zeros
# are common, as in a replay that is not full.
PRIORITIES = st.one_of(st.just(0), st.integers(0, 9))
FORMS = ["scalar", "row", "column", "full"]  # what is broadcast to [trees, n]


@st.composite
def writes(draw: st.DrawFn, trees: int, size: int) -> tuple[np.ndarray, np.ndarray | float]:
    """Arguments of set(): leaves [n] for all trees or [trees, n], with duplicates; priorities in any form."""
    n = draw(st.integers(1, 6))
    shape = draw(st.sampled_from([(n,), (trees, n)]))
    count = int(np.prod(shape))
    leaves = np.array(draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))).reshape(shape)
    form = {"scalar": (), "row": (n,), "column": (trees, 1), "full": (trees, n)}[draw(st.sampled_from(FORMS))]
    count = int(np.prod(form))
    values = draw(st.lists(PRIORITIES, min_size=count, max_size=count))
    return leaves, np.array(values, dtype=np.float64).reshape(form) if form else float(values[0])


@pytest.mark.parametrize("size", SIZES)
@given(data=st.data(), trees=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_writes_and_reads_agrees_with_running_sums(size: int, data: st.DataObject, trees: int) -> None:
    fast, naive = SumTrees(trees, size), NaiveTrees(trees, size)
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):  # several writes before the sums are read
            leaves, priorities = data.draw(writes(trees, size))
            fast.set(leaves, priorities)
            full = (trees, np.atleast_2d(leaves).shape[1])
            naive.set(np.broadcast_to(leaves, full).tolist(), np.broadcast_to(priorities, full).tolist())
        everything = np.arange(size)
        np.testing.assert_array_equal(fast.get(everything), naive.priorities)
        np.testing.assert_array_equal(fast.get(np.tile(everything[::-1], (trees, 1))), np.fliplr(naive.priorities))
        np.testing.assert_array_equal(fast.total(), [sum(row) for row in naive.priorities])
        totals = fast.total()
        if (totals == 0).any():
            continue
        # Halves, so that every edge between two leaves and a point within every leaf are tried (if there are few).
        steps = [np.linspace(0, 2 * int(total) - 1, 24).astype(int) / 2 for total in totals]
        mass = np.stack(steps)
        before = mass.copy()
        found = fast.find(mass)
        np.testing.assert_array_equal(mass, before)
        for tree in range(trees):
            assert found[tree].tolist() == [naive.find(tree, m) for m in mass[tree]]


def test_get_reads_each_tree_at_its_own_leaves() -> None:
    trees = SumTrees(2, 5)
    trees.set(np.arange(5), np.array([[0.0, 1, 2, 3, 4], [10.0, 11, 12, 13, 14]]))
    np.testing.assert_array_equal(trees.get(np.array([[4, 0], [1, 1]])), [[4, 0], [11, 11]])


def test_the_last_write_of_a_duplicate_counts() -> None:
    trees = SumTrees(2, 4)
    trees.set(np.array([[3, 3, 1], [2, 2, 2]]), np.array([[1.0, 5, 2], [7.0, 8, 9]]))
    np.testing.assert_array_equal(trees.get(np.arange(4)), [[0, 2, 0, 5], [0, 0, 9, 0]])
    np.testing.assert_array_equal(trees.total(), [7, 9])


@pytest.mark.parametrize("size", SIZES)
def test_one_tree_serves_many_rows(size: int) -> None:
    generator = np.random.default_rng(0)
    priorities = generator.integers(1, 9, size).astype(float)
    fast, naive = SumTrees(1, size), NaiveTrees(1, size)
    fast.set(np.arange(size), priorities)
    naive.set([list(range(size))], [priorities.tolist()])
    mass = generator.integers(0, int(priorities.sum()), (5, 7)).astype(float)
    found = fast.find(mass)
    assert found.shape == (5, 7)
    assert found.tolist() == [[naive.find(0, m) for m in row] for row in mass]


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), trees=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_an_empty_leaf_is_never_found(seed: int, size: int, trees: int) -> None:
    """Also where sums round: priorities of many magnitudes, masses at both ends of the range, the total itself."""
    generator = np.random.default_rng(seed)
    priorities = 10.0 ** generator.uniform(-8, 8, (trees, size)) * (generator.random((trees, size)) < 0.3)
    priorities[:, generator.integers(size)] = 0.1  # no tree is empty
    tree = SumTrees(trees, size)
    tree.set(generator.permutation(size), 1.0)
    assert (tree.total() == size).all()
    tree.set(np.arange(size), priorities)
    total = tree.total()[:, None]
    shares = np.concatenate([[0.0, 1.0, np.nextafter(1.0, 0.0)], generator.random(100)])
    edges = np.cumsum(priorities, axis=1)[:, :100]  # sums in another order: within rounding of the tree's own edges
    found = tree.find(np.concatenate([shares * total, np.minimum(edges, total)], axis=1))
    assert (tree.get(found) > 0).all()


@pytest.mark.parametrize("size", SIZES)
def test_state_round_trip(size: int) -> None:
    """The copy finds the same leaves, whatever it held before, and what follows does not reach back into the state."""
    generator = np.random.default_rng(size)
    original = SumTrees(3, size)
    original.set(np.arange(size), generator.random((3, size)))
    original.total()
    original.set(np.array([size // 2]), 0.7)  # not yet summed when the state is taken
    state = original.state_dict()
    shares = generator.random((3, 50))
    totals, found = original.total().copy(), original.find(shares * original.total()[:, None])
    original.set(np.arange(size), 2.0)

    other = SumTrees(3, size)
    other.set(np.arange(size), 5.0)
    other.total()
    other.set(np.arange(size), 6.0)  # not yet summed when the state arrives
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.total(), totals)
    np.testing.assert_array_equal(other.find(shares * other.total()[:, None]), found)
    other.set(np.arange(size), 2.0)
    np.testing.assert_array_equal(other.total(), original.total())


def test_a_state_may_hold_the_written_leaves_alone() -> None:
    original, other = SumTrees(2, 100), SumTrees(2, 100)
    original.set(np.arange(30), np.random.default_rng(0).random((2, 30)))
    other.set(np.arange(100), 5.0)
    state = original.state_dict(used=30)
    assert state["leaves"].shape == (2, 30)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.total(), original.total())
    np.testing.assert_array_equal(other.get(np.arange(100)), original.get(np.arange(100)))


def test_the_memory_of_the_sums_is_known_before_they_are_made() -> None:
    """Three trees of 1024 leaves and as many sums; the roots lie at 4, 5 and 6, so numbers 0 to 3 are nobody's."""
    assert tree_bytes(3, 1000) == (4 + 3) * 1024 * 8
    assert tree_bytes(1, 1000) == 2 * 1024 * 8
    assert tree_bytes(3, 1000) == SumTrees(3, 1000)._sums.nbytes


DRAWS = 50_000
ROWS, BATCH = 3, 20


def draw_counts(generator: np.random.Generator, priorities: np.ndarray, *, stratified: bool) -> np.ndarray:
    """How often each of three trees drew each leaf, [3, size], in 50,000 draws from each."""
    trees = SumTrees(len(priorities), priorities.shape[1])
    # Written twice, the second time piece by piece: sums must follow.
    trees.set(np.arange(priorities.shape[1]), generator.random(priorities.shape))
    trees.total()
    for leaf in generator.permutation(priorities.shape[1]):
        trees.set(np.array([leaf]), priorities[:, leaf : leaf + 1])
    counts = np.zeros(priorities.shape)
    for _ in range(DRAWS // BATCH):
        share = generator.random((len(priorities), BATCH))
        if stratified:
            share = (np.arange(BATCH) + share) / BATCH
        found = trees.find(share * trees.total()[:, None])
        for tree, leaves in enumerate(found):
            np.add.at(counts[tree], leaves, 1)
    return counts


@pytest.mark.parametrize("stratified", [False, True], ids=["iid", "stratified"])
def test_draws_are_proportional_to_priorities(stratified: bool) -> None:
    generator = np.random.default_rng(7)
    priorities = generator.uniform(0.5, 2.0, (ROWS, 37))
    counts = draw_counts(generator, priorities, stratified=stratified)
    assert (counts.sum(axis=1) == DRAWS).all()
    for tree in range(ROWS):
        expected = priorities[tree] / priorities[tree].sum() * DRAWS
        assert chisquare(counts[tree], expected).pvalue > 1e-3

        # Controls: the same statistic tells the right priorities from slightly and from very wrong ones.
        two_swapped = expected.copy()
        two_swapped[[0, 1]] = expected[[1, 0]]
        assert chisquare(counts[tree], two_swapped).pvalue < 1e-6
        assert chisquare(counts[tree], np.full(37, DRAWS / 37)).pvalue < 1e-6
        next_tree = priorities[(tree + 1) % ROWS]
        assert chisquare(counts[tree], next_tree / next_tree.sum() * DRAWS).pvalue < 1e-6
        sharper = priorities[tree] ** 1.2
        assert chisquare(counts[tree], sharper / sharper.sum() * DRAWS).pvalue < 1e-6
