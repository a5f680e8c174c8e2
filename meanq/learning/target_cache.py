"""V-bar(s'), what lagging weights say of a next state, computed at most once per transition and copy of the weights.

Between two copies a transition is drawn again and again, and V-bar(s') is the same each time and for all members: it is
kept, by the transition's number. This changes no bit of a run: states are evaluated in batches of one fixed size, kept
values or not, and a state's value must not depend on its place in its batch, which `exact` tests.
"""

import numpy as np
import torch
from torch import Tensor

from meanq.learning.learner import Evaluate
from meanq.learning.networks import Params, QNetwork
from meanq.replay.buffer import Batch
from meanq.replay.frames import move

# States evaluated at once. With fewer, the overhead of a call shows; with more, a few missing ones are evaluated in the
# company of many that nobody asked for. K=5 on one core: 160 states take 5.1 ms in batches of 32 and 4.7 in one of 160
# with MinAtar's network, 235 and 205 with Nature's.
CHUNK = 32


class NextValues:
    """The values of drawn transitions' next states; asks for those alone that it does not hold yet."""

    def __init__(self, evaluate: Evaluate, device: torch.device, *, keep: bool) -> None:
        self._evaluate = evaluate
        self._device = device
        self.keep = keep  # False: nothing is held from one batch to the next
        self._exact: bool | None = None  # None: not tested yet
        self._values = torch.zeros(0, device=device)  # by the slot where the transition starts
        self._numbers = np.zeros(0, dtype=np.int64)  # whose value a slot holds; -1: nobody's

    def forget(self) -> None:
        """The weights have changed."""
        self._numbers.fill(-1)

    @torch.no_grad()
    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """V-bar(s') [R, B] under these weights, which are those of the last call unless `forget` was called since."""
        assert batch.numbers is not None
        slots, numbers = batch.indices.ravel(), batch.numbers.ravel()
        self._make_room(int(slots.max()) + 1)
        if not self.keep:
            self._numbers[slots] = -1
        missing = np.flatnonzero(self._numbers[slots] != numbers)
        missing = missing[np.unique(slots[missing], return_index=True)[1]]  # each once
        if len(missing) > 0:
            filled = np.resize(missing, -(-len(missing) // CHUNK) * CHUNK)  # the last batch with repetitions
            states = batch.next_states.flatten(0, 1)[move(filled, self._device)]
            values = torch.cat([self._evaluate(params, chunk) for chunk in states.split(CHUNK)]).max(-1).values
            self._values[move(slots[missing], self._device)] = values[: len(missing)]
            self._numbers[slots[missing]] = numbers[missing]
        return self._values[move(batch.indices, self._device)]

    @torch.no_grad()
    def exact(self, network: QNetwork, params: Params, states: Tensor) -> bool:
        """Whether a state's value is the same to the bit wherever it stands in its batch: a test of kernels, made once.

        Where there are 5 actions, for one, a product with the last layer may be rounded otherwise in every fourth row.
        The test has weights and states of its own, of the kind of these, always the same ones: so its answer is a fact
        of the machine, the network and the number of threads, and a resumed run has the same.
        """
        if self._exact is None:
            generator = torch.Generator().manual_seed(0)
            fresh = network.init([generator] * network.members(params))
            weights = {name: p.to(states.device) for name, p in fresh.items()}
            numbers = 256 * torch.rand(4 * CHUNK, *network.state_shape, generator=generator)
            made_up = numbers.to(states.device, states.dtype)

            def moved(by: int) -> Tensor:
                chunks = made_up.roll(by, 0).split(CHUNK)
                return torch.cat([self._evaluate(weights, chunk) for chunk in chunks]).roll(-by, 0)

            at_home = moved(0)
            self._exact = all(torch.equal(moved(by), at_home) for by in (1, 3))
        return self._exact

    def _make_room(self, slots: int) -> None:
        lacking = slots - len(self._numbers)
        if lacking > 0:  # twice as many, so that it happens seldom while a replay fills
            lacking = max(lacking, len(self._numbers))
            self._numbers = np.concatenate([self._numbers, np.full(lacking, -1)])
            self._values = torch.cat([self._values, self._values.new_zeros(lacking)])
