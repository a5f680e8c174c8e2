"""A user's own code, one of each kind; tests name these by their import path."""

from typing import Any

import torch
from torch import Tensor, nn

from meanq.learning.values import ScalarValue


class Absolute(ScalarValue):
    """A value form: the absolute TD error as loss."""

    def __init__(self, algo: Any, device: torch.device) -> None:
        super().__init__()

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        errors = (targets - taken).abs()
        return errors, errors.detach()


def softmax(q: Any, step: int, generator: Any) -> int:
    """An exploration rule: actions by the softmax of the mean value."""
    logits = q.mean(0) - q.mean(0).max()
    weights = 2.718281828 ** (10 * logits)
    return int(generator.choice(len(weights), p=weights / weights.sum()))


class Net(nn.Module):
    """A network: one hidden layer."""

    def __init__(self, state_shape: tuple[int, ...], outputs: tuple[int, ...], width: int = 16) -> None:
        super().__init__()
        self.outputs = outputs
        size, out = torch.Size(state_shape).numel(), torch.Size(outputs).numel()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, states: Tensor) -> Tensor:
        return self.layers(states).unflatten(-1, self.outputs)


def all_members(q: Tensor) -> Tensor:
    """A mistake: members are not reduced."""
    return q


def ninth_action(q: Any, step: int, generator: Any) -> int:
    """A mistake: there is no such action."""
    return 99


class NoSteps:
    """A mistake: an optimiser without methods."""

    def __init__(self, params: Any, algo: Any) -> None: ...


class FlatNet(Net):
    """A mistake: outputs of one number."""

    def forward(self, states: Tensor) -> Tensor:
        return self.layers(states).sum(-1)


class HalfForm:
    """A mistake: a value form without methods."""

    atoms = None

    def __init__(self, algo: Any, device: torch.device) -> None: ...
