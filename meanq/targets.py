"""Bootstrap rules: from every member's values of a next state to the value that a member's target uses.

A rule reads values q [E, R, B, A] of next states: E members that evaluate, R minibatches (one per member, also where
all members share one), B states, A actions. It returns [R, B, A]. Row r is the minibatch that member r learns from.
The action is the best one under `select`, its value the one under `evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Reduction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BootstrapRule:
    """How the next state's value is formed."""

    select: Reduction
    evaluate: Reduction
    # False: a state is evaluated only by the member that learns from it, E = 1. Saves the K^2 evaluations.
    all_members: bool = True
    min_members: int = 1


def mean(q: Tensor) -> Tensor:
    """MeanQ, Ens-DQN: the mean over members."""
    return q.mean(0)


def minimum(q: Tensor) -> Tensor:
    """Maxmin (Lan et al. 2020): the least of the members' values."""
    return q.min(0).values


def own(q: Tensor) -> Tensor:
    """The value of the member that learns from the state."""
    return q.diagonal(dim1=0, dim2=1).permute(2, 0, 1)


def others(q: Tensor) -> Tensor:
    """EBQL (Peer et al. 2021): the mean over all members but the one that learns from the state."""
    members = q.shape[0]
    share = (1 - torch.eye(members, dtype=q.dtype, device=q.device)) / (members - 1)
    return torch.einsum("er,erba->rba", share, q)


RULES = {
    "mean": BootstrapRule(mean, mean),
    "own": BootstrapRule(mean, mean, all_members=False),
    "min": BootstrapRule(minimum, minimum),
    "others": BootstrapRule(own, others, min_members=2),
}


def next_value(rule: BootstrapRule, q_target: Tensor, q_online: Tensor | None) -> Tensor:
    """The value [R, B] of next states; with q_online given (Double DQN), that chooses the action."""
    actions = rule.select(q_target if q_online is None else q_online).argmax(-1, keepdim=True)
    return rule.evaluate(q_target).gather(-1, actions).squeeze(-1)


def td_target(returns: Tensor, discounts: Tensor, value: Tensor) -> Tensor:
    """y = r + discount * V(s'); the discount is 0 after a terminal."""
    if not returns.shape == discounts.shape == value.shape:
        raise ValueError(f"shapes differ: returns {returns.shape}, discounts {discounts.shape}, value {value.shape}")
    return returns + discounts * value
