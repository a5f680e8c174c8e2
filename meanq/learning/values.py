"""Forms of value: a scalar per action, probabilities of fixed atoms (C51) or bins (HL-Gauss), or quantiles (QR-DQN).

A value form defines what a network's outputs mean: their expectation, the target built from next states' outputs and a
bootstrap rule, and the loss. Outputs are [..., A] (scalar), log-probabilities [..., A, Z] (categorical, Bellemare et
al. 2017) or quantiles [..., A, Z] (Dabney et al. 2018). docs/extending.md shows how to write another form.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meanq.config.extensions import VALUE_FORMS, import_code
from meanq.config.schema import AlgoConfig
from meanq.learning.bootstrap import BootstrapRule
from meanq.learning.layers import LogProbabilities, PlainOutputs


class ValueForm(Protocol):
    """The interface between the learner and a network's outputs."""

    atoms: int | None  # Z, numbers per action; None: one number, and outputs have no last dimension

    def outputs(self, raw: Tensor) -> Tensor:
        """Compute outputs from what the network's last layer gives, both [..., A(, Z)]."""

    def average(self, outputs: Tensor, dim: int) -> Tensor:
        """Average the outputs of several networks over a dimension."""

    def expectation(self, outputs: Tensor) -> Tensor:
        """Compute Q [..., A]."""

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Select the outputs of `actions` [..., B], which are broadcast over leading dimensions: [..., B(, Z)]."""

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """Compute targets [R, B(, Z)] from next states' outputs [E, R, B, A(, Z)] and the chosen actions [R, B]."""

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute each sample's loss and the error that sets its priority, both [K, B]."""

    def spread(self, outputs: Tensor) -> Tensor | None:
        """Compute the standard deviation of each value distribution [..., A]; None for scalar values."""


def make_value_form(algo: AlgoConfig, device: torch.device) -> ValueForm:
    """Build the value form named by `algo.value`."""
    if algo.value == "scalar":
        return ScalarValue(algo.loss)
    if algo.value == "quantile":
        return QuantileValue(algo.quantiles, device)
    if algo.value not in VALUE_FORMS:
        form: ValueForm = import_code("algo.value", algo.value)(algo, device)
        return form
    distribution = GaussianHistogramValue if algo.value == "hl_gauss" else CategoricalValue
    return distribution(algo.value_min, algo.value_max, algo.atoms, device)


class ScalarValue(PlainOutputs):
    """A scalar Q per action, learned with a squared or Huber loss of the TD error."""

    atoms: int | None = None

    def __init__(self, loss: str = "squared") -> None:
        self._huber = loss == "huber"

    def expectation(self, outputs: Tensor) -> Tensor:
        return outputs

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return outputs.gather(-1, actions.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """Compute y = r + discount * V(s') [R, B]; the discount is 0 after a terminal step."""
        value = self.at(rule.evaluate(outputs), actions)
        same_shape(returns=returns, discounts=discounts, value=value)
        return returns + discounts * value

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss and the absolute TD error. Huber loss: e^2 / 2 up to |e| = 1, and |e| - 1/2 beyond."""
        same_shape(taken=taken, targets=targets)
        errors = targets - taken
        losses = F.huber_loss(taken, targets, reduction="none") if self._huber else errors.square()
        return losses, errors.detach().abs()

    def spread(self, outputs: Tensor) -> None:
        """Return None: a scalar has no spread."""


class Atoms:
    """Outputs with several numbers Z per action."""

    def at(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Select the numbers [..., Z] of `actions` from outputs [..., A, Z]."""
        index = actions.expand(outputs.shape[:-2])[..., None, None].expand(*outputs.shape[:-2], 1, outputs.shape[-1])
        return outputs.gather(-2, index).squeeze(-2)


class CategoricalValue(Atoms, LogProbabilities):
    """A distribution over `atoms` evenly spaced values per action, learned with cross entropy."""

    def __init__(self, value_min: float, value_max: float, atoms: int, device: torch.device) -> None:
        self.atoms: int | None = atoms
        self.support = torch.linspace(value_min, value_max, atoms, device=device)  # z
        self._min, self._max = value_min, value_max
        self._spacing = (value_max - value_min) / (atoms - 1)

    def expectation(self, outputs: Tensor) -> Tensor:
        return outputs.exp() @ self.support

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """Combine the members' distributions at the chosen action and project the target on the support: [R, B, Z]."""
        chosen = self.at(outputs, actions)
        return self.project(returns, discounts, combined(rule, chosen.exp(), self.expectation(chosen)))

    def project(self, returns: Tensor, discounts: Tensor, distribution: Tensor) -> Tensor:
        """Project the distribution of r + discount * Z' on the support: [R, B, Z].

        The mass of each shifted atom is split between its two neighbours, and mass outside the support goes to the
        ends. A neighbour's share falls linearly with distance and is 0 one spacing away, so the projection is a dense
        product with a [Z, Z] matrix per sample, without scatter.
        """
        same_shape(returns=returns, discounts=discounts, distribution=distribution[..., 0])
        moved = (returns.unsqueeze(-1) + discounts.unsqueeze(-1) * self.support).clamp(self._min, self._max)
        distance = (moved.unsqueeze(-2) - self.support.unsqueeze(-1)).abs()  # [R, B, Z on the support, Z moved]
        share = (1 - distance / self._spacing).clamp(min=0)
        return (share @ distribution.unsqueeze(-1)).squeeze(-1)

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the cross entropy, which also serves as the error."""
        same_shape(taken=taken, targets=targets)
        cross_entropy = -(targets * taken).sum(-1)
        return cross_entropy, cross_entropy.detach()

    def spread(self, outputs: Tensor) -> Tensor:
        distances = self.support - self.expectation(outputs).unsqueeze(-1)
        return (outputs.exp() * distances.square()).sum(-1).sqrt()


class GaussianHistogramValue(CategoricalValue):
    """HL-Gauss (Imani and White 2018, Farebrother et al. 2024): a scalar target, learned as a distribution over bins.

    The `atoms` bins have equal widths from `value_min` to `value_max`, and Q is the mean of their centres. The scalar
    target y, which is clamped to this range, becomes a normal distribution around y with a standard deviation of
    SIGMA bin widths, cut off at the range.
    """

    SIGMA = 0.75

    def __init__(self, value_min: float, value_max: float, atoms: int, device: torch.device) -> None:
        self._edges = torch.linspace(value_min, value_max, atoms + 1, device=device)
        width = (value_max - value_min) / atoms
        super().__init__(value_min + width / 2, value_max - width / 2, atoms, device)  # the support holds the centres
        self._sigma = self.SIGMA * width

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """Compute y as for scalar values, and its distribution over the bins: [R, B, Z]."""
        return self.histogram(ScalarValue().target(rule, self.expectation(outputs), actions, returns, discounts))

    def histogram(self, y: Tensor) -> Tensor:
        """Compute p_i, proportional to Phi((e_i+1 - y) / sigma) - Phi((e_i - y) / sigma): [..., Z]."""
        y = y.clamp(self._edges[0], self._edges[-1]).unsqueeze(-1)
        below = torch.special.ndtr((self._edges - y) / self._sigma)
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the cross entropy, and the absolute difference of expectations, which is about the TD error."""
        difference = targets @ self.support - self.expectation(taken.detach())
        return super().losses(taken, targets)[0], difference.abs()


class QuantileValue(Atoms, PlainOutputs):
    """Quantiles of the return per action, learned by quantile regression (QR-DQN, Dabney et al. 2018).

    Output i estimates the quantile at the midpoint tau_i = (i + 1/2) / N. Bootstrap rules combine members quantile by
    quantile, and the expectation is the mean over quantiles.
    """

    def __init__(self, quantiles: int, device: torch.device) -> None:
        self.atoms: int | None = quantiles
        self._tau = (torch.arange(quantiles, device=device) + 0.5) / quantiles

    def expectation(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def target(
        self, rule: BootstrapRule, outputs: Tensor, actions: Tensor, returns: Tensor, discounts: Tensor
    ) -> Tensor:
        """Combine the members' quantiles at the chosen action and move them by r + discount * theta: [R, B, N]."""
        chosen = self.at(outputs, actions)
        quantiles = combined(rule, chosen, self.expectation(chosen))
        same_shape(returns=returns, discounts=discounts, quantiles=quantiles[..., 0])
        return returns.unsqueeze(-1) + discounts.unsqueeze(-1) * quantiles

    def losses(self, taken: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij), u_ij = target_j - taken_i; it is the error, too."""
        same_shape(taken=taken, targets=targets)
        taken, targets = torch.broadcast_tensors(taken.unsqueeze(-1), targets.unsqueeze(-2))  # [K, B, N of i, N of j]
        huber = F.huber_loss(taken, targets, reduction="none")
        weight = (self._tau.unsqueeze(-1) - (targets < taken).to(taken.dtype)).abs().detach()
        losses = (weight * huber).mean(-1).sum(-1)
        return losses, losses.detach()

    def spread(self, outputs: Tensor) -> Tensor:
        return outputs.std(-1, correction=0)


def combined(rule: BootstrapRule, numbers: Tensor, values: Tensor) -> Tensor:
    """Merge the members' numbers [E, R, B, Z] of one action, whose values are [E, R, B], by the rule: [R, B, Z]."""
    assert rule.combine is not None, "checked with the configuration"
    return rule.combine(numbers.unsqueeze(-2), values.unsqueeze(-1)).squeeze(-2)  # a rule sees a single action


def same_shape(**tensors: Tensor) -> None:
    """Raise if shapes differ, where broadcasting would hide a mistake."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes differ: {shapes}")
