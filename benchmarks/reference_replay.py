"""A straightforward replay buffer: lists, a sum tree per member, loops over sampled items.

It draws the same transitions as the replay buffer of meanq/ (tests/benchmarks/test_reference.py), which is timed
against it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from meanq.envs import FrameStack


@dataclass
class Minibatch:
    """The minibatch of one member for one step."""

    slots: list[int]  # slots of the ring buffer
    states: Tensor  # [B, C, H, W]
    actions: Tensor  # [B]
    rewards: Tensor  # [B]
    discounts: Tensor  # [B], 0 after a terminal step
    next_states: Tensor  # [B, C, H, W]
    weights: Tensor  # [B], importance weights


class SumTree:
    """Samples leaves in proportion to their priorities. The root is node 1; node n has children 2n and 2n+1."""

    def __init__(self, size: int) -> None:
        self._first_leaf = 1 << (size - 1).bit_length()
        self._sums = [0.0] * (2 * self._first_leaf)

    def total(self) -> float:
        return self._sums[1]

    def get(self, leaf: int) -> float:
        return self._sums[self._first_leaf + leaf]

    def update(self, leaf: int, priority: float) -> None:
        sums, node = self._sums, self._first_leaf + leaf
        sums[node] = priority
        while node > 1:
            node //= 2
            sums[node] = sums[2 * node] + sums[2 * node + 1]

    def retrieve(self, mass: float) -> int:
        """Find the leaf where the cumulative sum of priorities first exceeds `mass`, in [0, total)."""
        sums, node = self._sums, 1
        while node < self._first_leaf:
            node *= 2
            if mass >= sums[node] and sums[node + 1] > 0:  # despite rounding, never reach a leaf with priority 0
                mass -= sums[node]
                node += 1
        return node - self._first_leaf


class ReferenceReplay:
    """A ring buffer of single frames with a sum tree per member. A transition leads from its slot to the next one."""

    def __init__(
        self,
        *,
        slots: int,
        frame_shape: tuple[int, ...],
        stack: int,
        discount: float,
        members: int,
        generator: np.random.Generator,
    ) -> None:
        self._slots = slots
        self._stack = stack
        self._discount = discount
        self._generator = generator
        self._frames = np.zeros((slots, *frame_shape), dtype=np.uint8)
        self._blank = np.zeros(frame_shape, dtype=np.uint8)
        self._actions = [0] * slots
        self._rewards = [0.0] * slots
        self._terminals = [False] * slots
        self._ages = [0] * slots  # frames since the episode's start
        self._drawable = [False] * slots
        self._num_drawable = 0
        self._head = -1  # the slot of the newest frame
        self._trees = [SumTree(slots) for _ in range(members)]
        self._max_priorities = [1.0] * members

    def start(self, frame: np.ndarray) -> None:
        """Begin an episode at its first frame."""
        self._store(frame, age=0)

    def append(self, action: int, reward: float, next_frame: np.ndarray, *, terminal: bool) -> None:
        """Store the action taken at the newest frame, its reward and, unless it was terminal, the next frame."""
        here = self._head
        self._actions[here] = action
        self._rewards[here] = reward
        self._terminals[here] = terminal
        if not terminal:
            self._store(next_frame, age=self._ages[here] + 1)
        self._set_drawable(here, True)

    def sample(self, batch_size: int, importance_exponent: float) -> list[Minibatch]:
        """Draw a stratified minibatch for every member from its own priorities."""
        return [self._minibatch(tree, batch_size, importance_exponent) for tree in self._trees]

    def update_priorities(self, member: int, slots: list[int], priorities: np.ndarray) -> None:
        """Set one member's priorities [B] of drawn transitions."""
        for slot, priority in zip(slots, priorities.tolist(), strict=True):
            priority = max(priority, 1e-8)  # a transition with zero error must keep a positive probability
            self._trees[member].update(slot, priority)
            self._max_priorities[member] = max(self._max_priorities[member], priority)

    def _minibatch(self, tree: SumTree, batch_size: int, importance_exponent: float) -> Minibatch:
        slots, states, next_states, weights = [], [], [], []
        total = tree.total()
        for i in range(batch_size):
            slot = tree.retrieve((i + self._generator.random()) / batch_size * total)
            slots.append(slot)
            states.append(self._state(slot))
            next_states.append(self._state((slot + 1) % self._slots))
            weights.append((self._num_drawable * tree.get(slot) / total) ** -importance_exponent)
        largest = max(weights)
        return Minibatch(
            slots=slots,
            states=torch.from_numpy(np.stack(states)),
            actions=torch.tensor([self._actions[slot] for slot in slots]),
            rewards=torch.tensor([self._rewards[slot] for slot in slots], dtype=torch.float32),
            discounts=torch.tensor([0.0 if self._terminals[slot] else self._discount for slot in slots]),
            next_states=torch.from_numpy(np.stack(next_states)),
            weights=torch.tensor([weight / largest for weight in weights]),
        )

    def _state(self, slot: int) -> np.ndarray:
        """Stack the last frames of the episode, oldest first, with blank frames before its start."""
        age = self._ages[slot]
        back = range(self._stack - 1, -1, -1)
        return np.concatenate([self._frames[(slot - i) % self._slots] if i <= age else self._blank for i in back])

    def _store(self, frame: np.ndarray, age: int) -> None:
        self._head = (self._head + 1) % self._slots
        # The overwritten frame belongs to the stacks of the following transitions; this is the last of them.
        self._set_drawable((self._head + self._stack - 1) % self._slots, False)
        self._frames[self._head] = frame
        self._ages[self._head] = age

    def _set_drawable(self, slot: int, drawable: bool) -> None:
        if self._drawable[slot] == drawable:
            return
        self._drawable[slot] = drawable
        self._num_drawable += 1 if drawable else -1
        for tree, priority in zip(self._trees, self._max_priorities, strict=True):
            tree.update(slot, priority if drawable else 0.0)


class UniformReplay:
    """Whole states in one array, sampled uniformly, as in a single-file DQN; without priorities."""

    def __init__(
        self,
        *,
        slots: int,
        frame_shape: tuple[int, ...],
        stack: int,
        discount: float,
        generator: np.random.Generator,
    ) -> None:
        self._slots = slots
        self._discount = discount
        self._generator = generator
        self._stack = FrameStack(stack, frame_shape, np.dtype(np.uint8))
        self._states = np.zeros((slots, *self._stack.state.shape), dtype=np.uint8)
        self._next_states = np.zeros_like(self._states)
        self._actions = np.zeros(slots, dtype=np.int64)
        self._rewards = np.zeros(slots, dtype=np.float32)
        self._discounts = np.zeros(slots, dtype=np.float32)
        self._stored = 0

    def start(self, frame: np.ndarray) -> None:
        """Begin an episode at its first frame."""
        self._stack.start(frame)

    def append(self, action: int, reward: float, next_frame: np.ndarray, *, terminal: bool) -> None:
        """Store the action taken in the newest state, its reward and the next frame."""
        slot = self._stored % self._slots
        self._states[slot] = self._stack.state
        self._next_states[slot] = self._stack.push(next_frame)
        self._actions[slot] = action
        self._rewards[slot] = reward
        self._discounts[slot] = 0.0 if terminal else self._discount
        self._stored += 1

    def sample(self, batch_size: int, importance_exponent: float) -> list[Minibatch]:
        """Draw one minibatch; all weights are 1 for every exponent."""
        slots = self._generator.integers(min(self._stored, self._slots), size=batch_size)
        return [
            Minibatch(
                slots=slots.tolist(),
                states=torch.from_numpy(self._states[slots]),
                actions=torch.from_numpy(self._actions[slots]),
                rewards=torch.from_numpy(self._rewards[slots]),
                discounts=torch.from_numpy(self._discounts[slots]),
                next_states=torch.from_numpy(self._next_states[slots]),
                weights=torch.ones(batch_size),
            )
        ]

    def update_priorities(self, member: int, slots: list[int], priorities: np.ndarray) -> None:
        """Do nothing: sampling is uniform."""
