"""Bootstrap rules: from every member's values of a next state to the value that a member's target uses.

A rule reads values q [E, R, B, A] of next states: E members that evaluate, R minibatches (one per member, also where
all members share one), B states, A actions. It returns [R, B, A]. Row r is the minibatch that member r learns from.
The action is the best one under `select`, its value the one under `evaluate`. Where values are distributions over
atoms, `combine` makes one distribution of the members' distributions p [E, R, B, A, Z].
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from meanq.config.extensions import import_bootstrap_rule

Reduction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BootstrapRule:
    """How the next state's value is formed."""

    select: Reduction
    evaluate: Reduction
    # (p, q) -> [R, B, A, Z]; None: the rule has no meaning for distributions.
    combine: Callable[[Tensor, Tensor], Tensor] | None = None
    # False: only the member that learns from a state need evaluate it, E = 1. Saves the K^2 evaluations.
    all_members: bool = True
    # True: a next state's value is the same whoever learns from it, so it can be computed once for all.
    same_for_all: bool = False
    min_members: int = 1


def mean(q: Tensor) -> Tensor:
    """MeanQ, Ens-DQN: the mean over members."""
    return q.mean(0)


def minimum(q: Tensor) -> Tensor:
    """Maxmin (Lan et al. 2020): the least of the members' values."""
    return q.min(0).values


def least_expected(p: Tensor, q: Tensor) -> Tensor:
    """Maxmin for distributions: that of the member with the least expected value."""
    least = q.argmin(0)[None, ..., None]  # [1, R, B, A, 1]
    return torch.take_along_dim(p, least, 0).squeeze(0)


def own(q: Tensor) -> Tensor:
    """The value of the member that learns from the state."""
    return q[0] if len(q) == 1 else q.diagonal(dim1=0, dim2=1).movedim(-1, 0)


def others(q: Tensor) -> Tensor:
    """EBQL (Peer et al. 2021): the mean over all members but the one that learns from the state."""
    members = q.shape[0]
    share = (1 - torch.eye(members, dtype=q.dtype, device=q.device)) / (members - 1)
    return torch.einsum("er,er...->r...", share, q)


def _linear(reduction: Reduction) -> Callable[[Tensor, Tensor], Tensor]:
    """A fixed average of members averages their distributions in the same way."""
    return lambda p, q: reduction(p)


# `meanq.config.extensions.BOOTSTRAP_RULES` gives these their names in a configuration.
MEAN = BootstrapRule(mean, mean, _linear(mean), same_for_all=True)
OWN = BootstrapRule(own, own, _linear(own), all_members=False)
MIN = BootstrapRule(minimum, minimum, least_expected, same_for_all=True)
OTHERS = BootstrapRule(own, others, _linear(others), min_members=2)


def bootstrap_rule(name: str) -> BootstrapRule:
    """The rule of this name, or a user's own at an import path; a plain function becomes a rule for scalar values."""
    rule = import_bootstrap_rule(name)
    return rule if isinstance(rule, BootstrapRule) else BootstrapRule(rule, rule)


def next_actions(rule: BootstrapRule, q: Tensor) -> Tensor:
    """The actions [R, B] that targets value, chosen by values q [E, R, B, A]; Double DQN gives it the online ones."""
    return rule.select(q).argmax(-1)
