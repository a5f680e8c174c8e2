"""Networks of the user's own for all members at once: the interface, and how plain modules get it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from meanq.learning.layers import Params


class Stacked(Protocol):
    """A user's own network for all members at once."""

    def init(self, generators: Sequence[torch.Generator]) -> Params:
        """Make parameters [K, ...]; member k uses only generator k."""

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        """Map states [N, *state], shared by all members, or [K, N, *state] to [K, N, *outputs]."""


class StackedModule:
    """Stacks a plain nn.Module: one call of the module's code evaluates all members (torch.func)."""

    def __init__(self, make: Callable[[], torch.nn.Module], state_shape: tuple[int, ...]) -> None:
        self._make, self._state_dims = make, len(state_shape)
        with torch.device("meta"):
            self._skeleton = make()
        if buffers := [name for name, _ in self._skeleton.named_buffers()]:
            raise ValueError(f"it has buffers ({', '.join(buffers)}), which members cannot share; use layers without")

    def init(self, generators: Sequence[torch.Generator]) -> Params:
        modules = []
        for generator in generators:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(generator.initial_seed())  # and not those of GPUs
                modules.append(self._make())
        stacked, _ = torch.func.stack_module_state(modules)
        return {name: p.detach() for name, p in stacked.items()}

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        def one(own: Params, x: Tensor) -> Tensor:
            return torch.func.functional_call(self._skeleton, own, (x,))

        shared = states.dim() == self._state_dims + 1
        return torch.vmap(one, in_dims=(0, None if shared else 0))(params, states)
