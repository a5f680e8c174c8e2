"""Bootstrap rules: how the members' values of a next state become the value in a member's target.

A rule reduces values q [E, R, B, A] of next states to [R, B, A]: E evaluating members, R minibatches (one per member,
even if all members share one), B states, A actions. Row r is the minibatch that member r learns from.
The next action is the argmax of `select`; its value comes from `evaluate`. For categorical values, `combine` merges
the members' distributions p [E, R, B, A, Z] into one. With `algo.bootstrap_subset`, E is a random subset of members.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meanq.config.extensions import import_bootstrap_rule
from meanq.config.schema import AlgoConfig

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Callable[..., "Tensor"]  # of q, and of the rule's option where it has one


@dataclass(frozen=True)
class BootstrapRule:
    """The reductions that turn the members' values of a next state into one value per action."""

    select: Reduction
    evaluate: Reduction
    # (p, q) -> [R, B, A, Z]; None: the rule is undefined for distributions.
    combine: Callable[[Tensor, Tensor], Tensor] | None = None
    # False: only the member that learns from a state evaluates it, so E = 1. This avoids K^2 evaluations.
    all_members: bool = True
    # True: a next state has the same value for every learning member, so it can be computed once for all of them.
    same_for_all: bool = False
    min_members: int = 1
    # False: the value does not depend on the chosen action, so Double DQN means nothing.
    chooses: bool = True
    # The field of `algo` that `select` and `evaluate` take as their second argument.
    option: str | None = None


def mean(q: Tensor) -> Tensor:
    """MeanQ, Ens-DQN: the mean over members."""
    return q.mean(0)


def minimum(q: Tensor) -> Tensor:
    """Maxmin (Lan et al. 2020): the minimum over members."""
    return q.min(0).values


def least_expected(p: Tensor, q: Tensor) -> Tensor:
    """Maxmin for distributions: the distribution of the member with the lowest expected value."""
    least = q.argmin(0)[None, ..., None]  # [1, R, B, A, 1]
    return p.take_along_dim(least, 0).squeeze(0)


def own(q: Tensor) -> Tensor:
    """The value of the member that learns from the state."""
    return q[0] if len(q) == 1 else q.diagonal(dim1=0, dim2=1).movedim(-1, 0)


def others(q: Tensor) -> Tensor:
    """EBQL (Peer et al. 2021): the mean over all members except the one that learns from the state."""
    import torch  # here, since every command line asks for facts about rules

    members = q.shape[0]
    share = (1 - torch.eye(members, dtype=q.dtype, device=q.device)) / (members - 1)
    return torch.einsum("er,er...->r...", share, q)


def mellowmax(q: Tensor, omega: float) -> Tensor:
    """DeepMellow (Kim et al. 2019): log(mean_a exp(omega q_a)) / omega of the members' mean, for every action."""
    q = q.mean(0)
    value = ((omega * q).logsumexp(-1, keepdim=True) - math.log(q.shape[-1])) / omega
    return value.expand_as(q)


def _linear(reduction: Reduction) -> Callable[[Tensor, Tensor], Tensor]:
    """Build `combine` for a linear reduction, which applies to probabilities unchanged."""
    return lambda p, q: reduction(p)


# `meanq.config.extensions.BOOTSTRAP_RULES` gives these their names in a configuration.
MEAN = BootstrapRule(mean, mean, _linear(mean), same_for_all=True)
OWN = BootstrapRule(own, own, _linear(own), all_members=False)
MIN = BootstrapRule(minimum, minimum, least_expected, same_for_all=True)
OTHERS = BootstrapRule(own, others, _linear(others), min_members=2)
MELLOWMAX = BootstrapRule(mellowmax, mellowmax, same_for_all=True, chooses=False, option="mellowmax_omega")


def bootstrap_rule(name: str, algo: AlgoConfig | None = None) -> BootstrapRule:
    """The rule of this name, or a user's own at an import path; a plain function becomes a rule for scalar values.

    `algo` gives the rule its option; without it, a rule that has one can only be asked about.
    """
    rule = import_bootstrap_rule(name)
    if not isinstance(rule, BootstrapRule):
        return BootstrapRule(rule, rule)
    if rule.option is None or algo is None:
        return rule
    evaluate, option = rule.evaluate, getattr(algo, rule.option)

    def reduce(q: Tensor) -> Tensor:
        return evaluate(q, option)

    return replace(rule, select=reduce, evaluate=reduce)


def next_actions(rule: BootstrapRule, q: Tensor) -> Tensor:
    """Choose the next actions [R, B] from values q [E, R, B, A]; Double DQN passes the online values."""
    return rule.select(q).argmax(-1)
