"""Acting and learning for a whole ensemble at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meanq.config import AlgoConfig, bootstrap_rule
from meanq.networks import Params, QNetwork
from meanq.replay import Batch
from meanq.targets import next_value, td_target


@dataclass
class Learned:
    """What one gradient step leaves behind; tensors, so that a GPU need not be waited for."""

    errors: Tensor  # [R, B], the absolute TD error that priorities are made of; averaged over members that share
    loss: Tensor  # mean over members
    mean_q: Tensor  # of the actions taken
    gradient_norm: Tensor  # mean over members, before clipping


class Agent:
    """K members: online weights, lagging weights, and their optimiser."""

    def __init__(self, algo: AlgoConfig, network: QNetwork, params: Params, device: torch.device) -> None:
        self._algo = algo
        self._rule = bootstrap_rule(algo)
        self._network = network
        self._device = device
        self.online: Params = {name: p.detach().clone().to(device).requires_grad_() for name, p in params.items()}
        self.target: Params | None = None  # [S * K, ...], the newest snapshot first
        if algo.target_network is not None:
            self.target = {n: torch.cat([p.detach()] * algo.target_snapshots) for n, p in self.online.items()}
        self._optimiser = torch.optim.Adam(
            list(self.online.values()), lr=algo.learning_rate, eps=algo.adam_epsilon, fused=True
        )

    @torch.inference_mode()
    def values(self, states: np.ndarray) -> np.ndarray:
        """Q [K, N, A] of states [N, *state] with the online weights."""
        return self._network(self.online, torch.from_numpy(states).to(self._device)).cpu().numpy()

    def learn(self, batch: Batch) -> Learned:
        """One step of all members, towards targets computed with the weights before the step."""
        targets = self.targets(batch)  # [K, B]
        states = batch.states if len(batch.states) > 1 else batch.states[0]
        q = self._network(self.online, states)  # [K, B, A]
        members, size = q.shape[:2]
        actions = batch.actions.expand(members, size)
        taken = q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)  # [K, B]
        errors = targets - taken
        # The mean over a member's minibatch and the sum over members: a member's gradient does not depend on K.
        member_loss = (batch.weights * errors.square()).mean(1)
        self._optimiser.zero_grad(set_to_none=True)
        member_loss.sum().backward()
        norms = self._clip_gradients()
        self._optimiser.step()
        absolute = errors.detach().abs()
        return Learned(
            errors=absolute if len(batch.states) == members else absolute.mean(0, keepdim=True),
            loss=member_loss.detach().mean(),
            mean_q=taken.detach().mean(),
            gradient_norm=norms.mean(),
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """y [K, B]."""
        q_target = self._next_values(self.online if self.target is None else self.target, batch)
        q_online = self._next_values(self.online, batch) if self._algo.double else None
        value = next_value(self._rule, q_target, q_online)
        return td_target(batch.returns.expand_as(value), batch.discounts.expand_as(value), value)

    def _next_values(self, params: Params, batch: Batch) -> Tensor:
        """Next states' values [E, R, B, A] as a bootstrap rule reads them: R = K minibatches, E members evaluating."""
        members = self._algo.ensemble_size
        rows, size = batch.actions.shape
        states = batch.next_states
        snapshots = len(params["hidden.bias"]) // members
        if rows == 1:  # all members evaluate the one minibatch they share
            q = self._network(params, states[0])
        elif self._rule.all_members:  # all members evaluate all minibatches
            q = self._network(params, states.flatten(0, 1))
        else:  # each evaluates its own
            q = self._network(params, states.repeat(snapshots, *[1] * (states.dim() - 1)))
        q = q.unflatten(0, (snapshots, members))
        q = q.mean(0) if snapshots > 1 else q[0]  # [K, N, A]
        if not self._rule.all_members:
            return q.unsqueeze(0)  # [1, K, B, A]
        return q.unflatten(1, (rows, size)).expand(members, members if rows == 1 else rows, size, -1)

    def _clip_gradients(self) -> Tensor:
        """Scale each member's gradient to the maximum norm at most; the norms [K] before."""
        gradients = [p.grad for p in self.online.values() if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]).norm(dim=0)
        scale = (self._algo.max_gradient_norm / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
        return norms

    @torch.no_grad()
    def update_target(self) -> None:
        """Take the online weights as the newest snapshot and drop the oldest."""
        if self.target is None:
            return
        for name, online in self.online.items():
            kept = self.target[name][: -len(online)]
            self.target[name] = torch.cat([online.detach(), kept])

    def state_dict(self) -> dict[str, Any]:
        """Weights, lagging weights, optimiser."""
        return {
            "online": {name: p.detach().clone() for name, p in self.online.items()},
            "target": None if self.target is None else {name: p.clone() for name, p in self.target.items()},
            "optimiser": self._optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the agent that gave this state."""
        with torch.no_grad():
            for name, p in self.online.items():
                p.copy_(state["online"][name])
        if self.target is not None:
            self.target = {name: p.clone() for name, p in state["target"].items()}
        self._optimiser.load_state_dict(state["optimiser"])
