"""MeanQ as one would write it first: K modules, K optimisers, loops over members and over sampled items.

It is what the batched engine of meanq/ is timed against, and checked against (tests/test_benchmark_reference.py). It is
plain, not slow on purpose: every target network evaluates all minibatches in one call and pixels are converted once.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from meanq.config import AlgoConfig, NetworkConfig


class Member(nn.Module):
    """One dueling Q network, each stream with a hidden layer of its own."""

    def __init__(self, state_shape: tuple[int, int, int], num_actions: int, config: NetworkConfig) -> None:
        super().__init__()
        channels, height, width = state_shape
        layers: list[nn.Module] = []
        for conv in config.convolutions:
            layers += [nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride), nn.ReLU()]
            channels = conv.channels
            height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
        self.features = nn.Sequential(*layers, nn.Flatten())
        size = channels * height * width
        self.value = nn.Sequential(nn.Linear(size, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1))
        self.advantage = nn.Sequential(nn.Linear(size, config.hidden), nn.ReLU(), nn.Linear(config.hidden, num_actions))

    def forward(self, x: Tensor) -> Tensor:
        """Q [N, A] of scaled states [N, C, H, W]."""
        x = self.features(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


@dataclass
class Minibatch:
    """What one member learns from in one step."""

    slots: list[int]  # of the ring
    states: Tensor  # [B, C, H, W]
    actions: Tensor  # [B]
    rewards: Tensor  # [B]
    discounts: Tensor  # [B], 0 after a terminal
    next_states: Tensor  # [B, C, H, W]
    weights: Tensor  # [B], importance weights


class ReferenceAgent:
    """K members with target networks."""

    def __init__(self, algo: AlgoConfig, make_member: Callable[[], Member], scale: float) -> None:
        self._max_gradient_norm = algo.max_gradient_norm
        self._scale = scale  # states are multiplied by it: 1/255 for pixels
        self.members = [make_member() for _ in range(algo.ensemble_size)]
        self.targets = [copy.deepcopy(member).requires_grad_(False) for member in self.members]
        self._optimisers = [
            torch.optim.Adam(member.parameters(), lr=algo.learning_rate, eps=algo.adam_epsilon)
            for member in self.members
        ]

    @torch.no_grad()
    def values(self, state: np.ndarray) -> np.ndarray:
        """Q [K, A] of one state."""
        x = self._input(torch.from_numpy(state[None]))
        return torch.cat([member(x) for member in self.members]).numpy()

    def learn(self, batches: list[Minibatch]) -> list[np.ndarray]:
        """One step of every member on its own minibatch; the absolute TD errors [B] of each."""
        targets = self.td_targets(batches)  # all before the first member changes
        return [self._learn(k, batch, target) for k, (batch, target) in enumerate(zip(batches, targets, strict=True))]

    @torch.no_grad()
    def td_targets(self, batches: list[Minibatch]) -> list[Tensor]:
        """y [B] of each member: r + discount * max_a mean_k Q-bar_k(s', a) at its own next states."""
        x = self._input(torch.cat([batch.next_states for batch in batches]))
        mean = torch.stack([target(x) for target in self.targets]).mean(0)  # [K * B, A]
        best = mean.max(1).values.split([len(batch.rewards) for batch in batches])
        return [batch.rewards + batch.discounts * value for batch, value in zip(batches, best, strict=True)]

    def update_targets(self) -> None:
        """Copy the online weights to the target networks."""
        for member, target in zip(self.members, self.targets, strict=True):
            target.load_state_dict(member.state_dict())

    def _learn(self, k: int, batch: Minibatch, target: Tensor) -> np.ndarray:
        member, optimiser = self.members[k], self._optimisers[k]
        q = member(self._input(batch.states))
        error = target - q.gather(1, batch.actions[:, None])[:, 0]
        loss = (batch.weights * error.square()).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(member.parameters(), self._max_gradient_norm)
        optimiser.step()
        return error.detach().abs().numpy()

    def _input(self, states: Tensor) -> Tensor:
        return states.float() * self._scale


class SumTree:
    """Draws a leaf with probability proportional to its priority. The root is node 1, node n has children 2n, 2n+1."""

    def __init__(self, size: int) -> None:
        self._first_leaf = 1 << (size - 1).bit_length()
        self._sums = [0.0] * (2 * self._first_leaf)

    def total(self) -> float:
        """The sum of all priorities."""
        return self._sums[1]

    def get(self, leaf: int) -> float:
        """A leaf's priority."""
        return self._sums[self._first_leaf + leaf]

    def update(self, leaf: int, priority: float) -> None:
        """Set a leaf's priority."""
        sums, node = self._sums, self._first_leaf + leaf
        sums[node] = priority
        while node > 1:
            node //= 2
            sums[node] = sums[2 * node] + sums[2 * node + 1]

    def retrieve(self, mass: float) -> int:
        """The leaf where the running sum of priorities first exceeds `mass`, for mass in [0, total)."""
        sums, node = self._sums, 1
        while node < self._first_leaf:
            node *= 2
            if mass >= sums[node] and sums[node + 1] > 0:  # rounding must not lead to a leaf with priority 0
                mass -= sums[node]
                node += 1
        return node - self._first_leaf


class ReferenceReplay:
    """A ring of single frames and a sum tree per member. A transition leads from its slot to the next one."""

    def __init__(
        self,
        *,
        slots: int,
        frame_shape: tuple[int, int, int],
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
        """What was done at the newest frame, and the frame it led to, which a terminal step does not need."""
        here = self._head
        self._actions[here] = action
        self._rewards[here] = reward
        self._terminals[here] = terminal
        if not terminal:
            self._store(next_frame, age=self._ages[here] + 1)
        self._set_drawable(here, True)

    def sample(self, batch_size: int, importance_exponent: float) -> list[Minibatch]:
        """A minibatch for every member, stratified, from its own priorities."""
        return [self._minibatch(tree, batch_size, importance_exponent) for tree in self._trees]

    def update_priorities(self, member: int, slots: list[int], priorities: np.ndarray) -> None:
        """Set one member's priorities [B] of drawn transitions."""
        for slot, priority in zip(slots, priorities.tolist(), strict=True):
            priority = max(priority, 1e-8)  # a transition with no error left must stay drawable
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
        """The last frames of the episode, oldest first, blank before its start."""
        age = self._ages[slot]
        back = range(self._stack - 1, -1, -1)
        return np.concatenate([self._frames[(slot - i) % self._slots] if i <= age else self._blank for i in back])

    def _store(self, frame: np.ndarray, age: int) -> None:
        self._head = (self._head + 1) % self._slots
        # The frame that is overwritten now belongs to the stacks of the next transitions up to this one.
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
