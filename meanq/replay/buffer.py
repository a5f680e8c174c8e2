"""Replay buffer: one ring buffer of frames for all members, with per-member, shared or uniform priorities."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meanq.replay.frames import FrameRing, to_device
from meanq.replay.sum_tree import SumTrees, tree_bytes


@dataclass
class Batch:
    """R minibatches: one per member (R = K), or a single one shared by all members (R = 1)."""

    indices: np.ndarray  # [R, B], slots of the ring buffer
    states: torch.Tensor  # [R, B, *state]
    actions: torch.Tensor  # [R, B]
    returns: torch.Tensor  # [R, B], discounted sum of rewards up to the next state
    discounts: torch.Tensor  # [R, B], discount of the next state's value; 0 after a terminal step
    next_states: torch.Tensor  # [R, B, *state]
    weights: torch.Tensor  # [R, B], importance weights
    masks: torch.Tensor | None = None  # [K, B], 1 if the member learns from the transition, else 0; None: all learn
    ids: np.ndarray | None = None  # [R, B], permanent ids of the transitions; slots are reused
    next_values: torch.Tensor | None = None  # [R, B], cached values of the next states; see target_cache.py


@dataclass
class BernoulliMask:
    """Each member learns from a transition with this probability (Osband et al. 2016; SUNRISE).

    The mask is drawn once per transition and stored.
    """

    members: int
    probability: float
    generator: np.random.Generator

    def draw(self) -> np.ndarray:
        """Draw the members [K] that learn from a new transition."""
        return self.generator.random(self.members) < self.probability


class Replay:
    """Holds about the last `capacity` transitions (a truncated episode takes one extra frame), each frame once.

    A slot of the ring buffer holds one frame and the action taken there. A state consists of the last `stack` frames of
    its episode, with blank frames before the episode's start; it is rebuilt when sampled. A transition can be sampled
    once its M-step successor is stored or its episode has ended, and until a frame of its stack is overwritten.
    """

    def __init__(
        self,
        *,
        capacity: int,
        frame_shape: tuple[int, ...],
        frame_dtype: np.dtype,
        stack: int,
        multi_step: int,
        discount: float,
        priority_trees: int,
        prioritized: bool,
        priority_exponent: float,
        generator: np.random.Generator,
        device: torch.device,
        mask: BernoulliMask | None = None,
        frames_on_device: bool = False,
    ) -> None:
        self.capacity = capacity
        self.stack = stack
        self.multi_step = multi_step
        self.discount = discount
        self.prioritized = prioritized
        self.priority_exponent = priority_exponent
        self.device = device
        self.frame_dtype = frame_dtype
        self.frame_bytes = int(np.prod(frame_shape)) * np.dtype(frame_dtype).itemsize
        self._generator = generator
        self._slots = ring_slots(capacity, stack)
        self._state_shape = (stack * frame_shape[0], *frame_shape[1:])
        self._frames = FrameRing(
            self._slots, int(np.prod(frame_shape)), frame_dtype, device, on_device=frames_on_device
        )
        self._stacks = np.zeros((self._slots, stack), dtype=np.int32)  # slots of each state's frames, oldest first
        # These are computed once, when a transition becomes sampleable, and not at every draw.
        self._actions = np.zeros(self._slots, dtype=np.int64)
        self._returns = np.zeros(self._slots, dtype=np.float32)
        self._discounts = np.zeros(self._slots, dtype=np.float32)
        self._next = np.zeros(self._slots, dtype=np.int64)  # the slot of the next state
        self._mask = mask
        self._masks = np.zeros((self._slots, mask.members if mask else 0), dtype=bool)  # members that learn from it
        self._stored = 0  # frames stored so far; frame number n is in slot n % slots until it is overwritten
        # Transitions that wait for their M-step successor: start slot, return and discount so far.
        self._pending: list[tuple[int, float, float]] = []
        self._active = np.zeros(self._slots, dtype=bool)
        self._num_active = 0
        self._trees = SumTrees(priority_trees, self._slots)
        self._max_priority = np.ones((priority_trees, 1))

    def __len__(self) -> int:
        return self._num_active

    @property
    def _head(self) -> int:
        """Slot of the newest frame."""
        return (self._stored - 1) % self._slots

    def start(self, frame: np.ndarray, *, keep_stack: bool = False) -> None:
        """Begin an episode. The rest of the stack is blank, or with `keep_stack` the previous frames."""
        self._pending.clear()
        previous = self._stacks[self._head, 1:].copy() if keep_stack else self._slots  # the slot of the blank frame
        self._store(frame)
        self._stacks[self._head, :-1] = previous

    def append(self, action: int, reward: float, next_frame: np.ndarray, *, terminal: bool, truncated: bool) -> None:
        """Store the action taken at the newest frame, its reward and the next frame.

        The next frame of a terminal step is not stored, since its value is never used. That of a truncated step is
        stored, since targets bootstrap from it.
        """
        here = self._head
        self._actions[here] = action
        if self._mask is not None:
            self._masks[here] = self._mask.draw()
        reward = float(np.float32(reward))
        factor = 0.0 if terminal else self.discount
        self._pending.append((here, 0.0, 1.0))
        self._pending = [
            (start, total + discount * reward, discount * factor) for start, total, discount in self._pending
        ]
        if not terminal:
            self._store(next_frame)
            self._stacks[self._head, :-1] = self._stacks[here, 1:]
        if terminal or truncated:
            ready, self._pending = self._pending, []
        else:
            ready = [self._pending.pop(0)] if len(self._pending) == self.multi_step else []
        for start, total, discount in ready:
            self._returns[start] = total
            self._discounts[start] = discount
            self._next[start] = (here + 1) % self._slots
            self._set_active(start, True)

    def sample(self, rows: int, batch_size: int, importance_exponent: float) -> Batch:
        """Draw `rows` minibatches at once. With one tree per member, row k uses member k's priorities."""
        total = self._trees.total()[:, None]
        # Stratified sampling (Schaul et al. 2015): one draw from each of B equal shares of the priority mass.
        share = (np.arange(batch_size) + self._generator.random((rows, batch_size))) / batch_size
        indices = self._trees.find(share * total)
        weights = np.ones((rows, batch_size))
        if self.prioritized:
            weights = (self._num_active * self._trees.get(indices) / total) ** -importance_exponent
            weights /= weights.max(axis=1, keepdims=True)
        return self._gather(indices, weights)

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from errors [R, B]. With one tree, a slot that was drawn repeatedly gets its mean error."""
        if not self.prioritized:
            return
        if len(self._max_priority) == 1 and len(set(indices.ravel().tolist())) < indices.size:
            slots, inverse = np.unique(indices.ravel(), return_inverse=True)
            mean = np.bincount(inverse, weights=errors.ravel()) / np.bincount(inverse)
            indices, errors = slots[None], mean[None]
        # A transition with zero error must keep a positive probability.
        priorities = np.maximum(errors, 1e-8) ** self.priority_exponent
        self._trees.set(indices, priorities)
        highest = priorities.max(axis=1, keepdims=True) if len(self._max_priority) > 1 else priorities.max()
        np.maximum(self._max_priority, highest, out=self._max_priority)

    def _store(self, frame: np.ndarray) -> None:
        self._stored += 1
        head = self._head
        # The overwritten frame belongs to the stacks of the next `stack` states. Only the last of these can still be
        # active; the others were deactivated when earlier frames were overwritten.
        self._set_active((head + self.stack - 1) % self._slots, False)
        self._frames.write(head, frame.reshape(-1))
        self._stacks[head, -1] = head

    def _set_active(self, slot: int, active: bool) -> None:
        if self._active[slot] == active:
            return
        self._active[slot] = active
        self._num_active += 1 if active else -1
        self._trees.set(slot, self._max_priority if active else 0.0)

    def _gather(self, indices: np.ndarray, weights: np.ndarray) -> Batch:
        frames = self._stacks.take(np.stack((indices, self._next.take(indices))), axis=0)
        pixels = self._frames.gather(frames.reshape(-1))
        states, next_states = pixels.view(2, *indices.shape, *self._state_shape).unbind()
        return Batch(
            indices=indices,
            states=states,
            actions=to_device(self._actions.take(indices), self.device),
            returns=to_device(self._returns.take(indices), self.device),
            discounts=to_device(self._discounts.take(indices), self.device),
            next_states=next_states,
            weights=to_device(weights.astype(np.float32), self.device),
            masks=self._gather_masks(indices),
            ids=self._stored - 1 - (self._head - indices) % self._slots,
        )

    def _gather_masks(self, indices: np.ndarray) -> torch.Tensor | None:
        if self._mask is None:
            return None
        if len(indices) == 1:  # one minibatch shared by all members
            masks = self._masks[indices[0]].T
        else:  # minibatch k belongs to member k
            masks = self._masks[indices, np.arange(len(indices))[:, None]]
        return to_device(masks.astype(np.float32), self.device)

    def held_frames(self) -> range:
        """Return the numbers of the stored frames that are not overwritten yet."""
        return range(max(0, self._stored - self._slots), self._stored)

    def get_frames(self, numbers: range) -> np.ndarray:
        """Return frames [n, size] by their numbers."""
        return self._frames.read(np.arange(numbers.start, numbers.stop) % self._slots)

    def set_frames(self, numbers: range, frames: np.ndarray) -> None:
        """Restore frames [n, size] by their numbers."""
        if len(numbers) > self._slots or numbers.stop > self._stored:
            raise ValueError(f"frames up to number {numbers.stop} do not fit {self._stored} stored ones")
        self._frames.write(np.arange(numbers.start, numbers.stop) % self._slots, frames)

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the frames, which never change and are therefore saved incrementally."""
        used = len(self.held_frames())
        return {
            **{name: getattr(self, f"_{name}")[:used].copy() for name in _SLOT_ARRAYS},
            "stored": self._stored,
            "pending": list(self._pending),
            "max_priority": self._max_priority.copy(),
            "trees": self._trees.state_dict(used),
            "generator": self._generator.bit_generator.state,
            "mask_generator": self._mask.generator.bit_generator.state if self._mask else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore everything except the frames; see `set_frames`."""
        self._stored = state["stored"]
        used = len(self.held_frames())
        for name in _SLOT_ARRAYS:
            array = getattr(self, f"_{name}")
            if state[name].shape != (used, *array.shape[1:]) or state[name].dtype != array.dtype:
                raise ValueError(f"{name} is {state[name].dtype} {state[name].shape}")
            array[:used], array[used:] = state[name], 0
        for name, most in (("next", self._slots), ("stacks", self._slots + 1)):  # one more: the blank frame
            if ((array := state[name]) < 0).any() or (array >= most).any():
                raise ValueError(f"{name} names frames that are not there")
        self._max_priority[:] = state["max_priority"]
        self._pending = list(state["pending"])
        self._num_active = int(self._active.sum())
        self._trees.load_state_dict(state["trees"])
        self._generator.bit_generator.state = state["generator"]
        if self._mask is not None:
            self._mask.generator.bit_generator.state = state["mask_generator"]


_SLOT_ARRAYS = ("actions", "returns", "discounts", "next", "stacks", "active", "masks")


def ring_slots(capacity: int, stack: int) -> int:
    """Slots needed for `capacity` transitions: the oldest `stack` slots lack frames, the newest has no action yet."""
    return capacity + stack + 1


def replay_bytes(
    capacity: int, frame_shape: tuple[int, ...], frame_dtype: np.dtype, stack: int, trees: int, masks: int = 0
) -> int:
    """Memory in bytes of a full replay, with masks for `masks` members."""
    slots = ring_slots(capacity, stack)
    per_slot = 8 + 4 + 4 + 8 + 4 * stack + 1 + masks  # action, return, discount, next, stacks, active, masks
    return frames_bytes(capacity, frame_shape, frame_dtype, stack) + slots * per_slot + tree_bytes(trees, slots)


def frames_bytes(capacity: int, frame_shape: tuple[int, ...], frame_dtype: np.dtype, stack: int) -> int:
    """Memory in bytes of the frames of a full replay, and of the blank one."""
    return (ring_slots(capacity, stack) + 1) * int(np.prod(frame_shape)) * np.dtype(frame_dtype).itemsize
