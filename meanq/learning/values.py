"""Two forms of value: a number per action, or a distribution over fixed atoms (C51, Bellemare et al. 2017).

A form says what a network's output means: its expectation, the target that a bootstrap rule makes of next states'
outputs, and the loss towards that target. Outputs are [..., A] (scalar) or log-probabilities [..., A, Z] (categorical).
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meanq.config.schema import AlgoConfig
from meanq.learning.bootstrap import BootstrapRule


class ValueForm(Protocol):
    """What the learner needs to know of a network's output."""

    def expectation(self, outputs: Tensor) -> Tensor:
        """Q [..., A]."""

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The outputs of these actions [..., B], which are broadcast over leading dimensions."""

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """What to learn [R, B(, Z)], from next states' outputs [E, R, B, A(, Z)] and the actions [R, B] chosen."""

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each sample, and the error that its priority is made of, both [K, B]."""

    def spread(self, outputs: Tensor) -> Tensor | None:
        """The standard deviation of each value's distribution [..., A]; None where a value is a number."""


def make_value_form(algo: AlgoConfig, device: torch.device) -> ValueForm:
    """The form that `algo.value` names."""
    if algo.value == "scalar":
        return ScalarValue(algo.loss)
    return CategoricalValue(algo.value_min, algo.value_max, algo.atoms, device)


class ScalarValue:
    """Q itself, learned by the square of the TD error, or by its Huber loss."""

    def __init__(self, loss: str = "squared") -> None:
        self._huber = loss == "huber"

    def expectation(self, outputs: Tensor) -> Tensor:
        """The outputs are values."""
        return outputs

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """[..., B]."""
        return outputs.gather(-1, actions.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """y = r + discount * V(s') [R, B]; the discount is 0 after a terminal."""
        value = self.at(rule.evaluate(outputs), actions)
        same_shape(returns=returns, discounts=discounts, value=value)
        return returns + discounts * value

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the absolute TD error. Huber: e^2 / 2 up to |e| = 1, and |e| - 1/2 beyond."""
        same_shape(taken=taken, targets=targets)
        errors = targets - taken
        losses = F.huber_loss(taken, targets, reduction="none") if self._huber else errors.square()
        return losses, errors.detach().abs()

    def spread(self, outputs: Tensor) -> None:
        """A number has none."""


class CategoricalValue:
    """A distribution over `atoms` evenly spaced values, learned by cross entropy."""

    def __init__(self, value_min: float, value_max: float, atoms: int, device: torch.device) -> None:
        self.support = torch.linspace(value_min, value_max, atoms, device=device)  # z
        self._min, self._max = value_min, value_max
        self._spacing = (value_max - value_min) / (atoms - 1)

    def expectation(self, outputs: Tensor) -> Tensor:
        """z . p."""
        return outputs.exp() @ self.support

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """[..., B, Z]."""
        index = actions.expand(outputs.shape[:-2])[..., None, None].expand(*outputs.shape[:-2], 1, outputs.shape[-1])
        return outputs.gather(-2, index).squeeze(-2)

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """The rule's distribution at the chosen action, moved by the reward, back on the support: [R, B, Z]."""
        assert rule.combine is not None, "checked with the configuration"
        chosen = self.at(outputs, actions).unsqueeze(-2)  # [E, R, B, 1, Z]: a rule treats each action by itself
        distribution = rule.combine(chosen.exp(), self.expectation(chosen)).squeeze(-2)
        return self.project(returns, discounts, distribution)

    def project(self, returns: Tensor, discounts: Tensor, distribution: Tensor) -> Tensor:
        """The distribution [R, B, Z] of r + discount * Z', each moved atom's mass shared by its two neighbours.

        Mass outside the support goes to its ends. An atom's share falls linearly with distance, to 0 one spacing away:
        a dense product of [Z, Z] shares per sample, with no scatter.
        """
        same_shape(returns=returns, discounts=discounts, distribution=distribution[..., 0])
        moved = (returns.unsqueeze(-1) + discounts.unsqueeze(-1) * self.support).clamp(self._min, self._max)
        distance = (moved.unsqueeze(-2) - self.support.unsqueeze(-1)).abs()  # [R, B, Z on the support, Z moved]
        share = (1 - distance / self._spacing).clamp(min=0)
        return (share @ distribution.unsqueeze(-1)).squeeze(-1)

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy, which is the error, too."""
        same_shape(taken=taken, targets=targets)
        cross_entropy = -(targets * taken).sum(-1)
        return cross_entropy, cross_entropy.detach()

    def spread(self, outputs: Tensor) -> Tensor:
        """sqrt(sum_i p_i (z_i - mean)^2)."""
        distances = self.support - self.expectation(outputs).unsqueeze(-1)
        return (outputs.exp() * distances.square()).sum(-1).sqrt()


def same_shape(**tensors: Tensor) -> None:
    """Raise where a broadcast could hide a mistake."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes differ: {shapes}")
