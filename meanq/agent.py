"""Acting and learning for a whole ensemble at once."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meanq.augmentation import random_shift
from meanq.config import AlgoConfig, bootstrap_rule
from meanq.networks import Params, QNetwork
from meanq.replay import Batch
from meanq.targets import next_actions
from meanq.values import make_value_form


@dataclass
class Learned:
    """What one gradient step leaves behind; tensors, so that a GPU need not be waited for."""

    errors: Tensor  # [R, B], what priorities are made of; averaged over members that share a minibatch
    loss: Tensor  # mean over members
    mean_q: Tensor  # of the actions taken
    gradient_norm: Tensor  # mean over members, before clipping


class DivergedError(FloatingPointError):
    """Learning has produced something that is not a finite number: going on is useless."""


class Agent:
    """K members: online weights, lagging weights, and their optimiser."""

    def __init__(
        self, algo: AlgoConfig, network: QNetwork, params: Params, device: torch.device, generator: torch.Generator
    ) -> None:
        self._algo = algo
        self._rule = bootstrap_rule(algo)
        self._value = make_value_form(algo, device)
        self._network = network
        self._device = device
        self._generator = generator  # of noisy weights and shifted images; lives on the device
        self.online: Params = {name: p.detach().clone().to(device).requires_grad_() for name, p in params.items()}
        self.target: Params | None = None  # [S * K, ...], the newest snapshot first
        if algo.target_network is not None:
            self.target = {n: torch.cat([p.detach()] * algo.target_snapshots) for n, p in self.online.items()}
        self._optimiser = torch.optim.Adam(
            list(self.online.values()), lr=algo.learning_rate, eps=algo.adam_epsilon, fused=True
        )

    @torch.inference_mode()
    def values(self, states: np.ndarray, *, explore: bool = False) -> np.ndarray:
        """Q [K, N, A] of states [N, *state] with the online weights; with fresh noise in them only to explore."""
        params = self._network.perturb(self.online, self._generator) if explore else self.online
        outputs = self._network(params, torch.from_numpy(states).to(self._device))
        return self._value.expectation(outputs).cpu().numpy()

    def learn(self, batch: Batch) -> Learned:
        """One step of all members, towards targets computed with the weights before the step."""
        if self._algo.random_shift:
            pixels, generator = self._algo.random_shift, self._generator
            batch = replace(
                batch,
                states=random_shift(batch.states, pixels, generator),
                next_states=random_shift(batch.next_states, pixels, generator),
            )
        targets, confidence = self.targets(batch)  # [K, B(, Z)], [K, B] or None
        states = batch.states if len(batch.states) > 1 else batch.states[0]
        outputs = self._network(self._network.perturb(self.online, self._generator), states)  # [K, B, A(, Z)]
        members, size = outputs.shape[:2]
        taken = self._value.at(outputs, batch.actions.expand(members, size))
        losses, errors = self._value.losses(taken, targets)  # [K, B]
        weights = batch.weights
        for factor in (confidence, batch.masks):
            if factor is not None:
                weights = weights * factor
        # The mean over a member's minibatch and the sum over members: a member's gradient does not depend on K.
        member_loss = (weights * losses).mean(1)
        self._optimiser.zero_grad(set_to_none=True)
        member_loss.sum().backward()
        norms = self._clip_gradients()
        self._optimiser.step()
        return Learned(
            errors=errors if len(batch.states) == members else errors.mean(0, keepdim=True),
            loss=member_loss.detach().mean(),
            mean_q=self._value.expectation(taken.detach()).mean(),
            gradient_norm=norms.mean(),
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """What members should learn [K, B(, Z)], and how far to trust it [K, B] (SUNRISE; None: wholly).

        Networks that take part are noisy each in its own way: those that evaluate, that choose, and that learn.
        """
        outputs = self._next_outputs(self.online if self.target is None else self.target, batch)
        q_choice = q = self._value.expectation(outputs)  # [E, R, B, A]
        if self._algo.double:
            q_choice = self._value.expectation(self._next_outputs(self.online, batch))
        confidence = None
        if self._algo.confidence_temperature:
            # How far members disagree on the next state's value, each by the action of its own choice.
            values = torch.take_along_dim(q, q_choice.argmax(-1, keepdim=True), -1).squeeze(-1)  # [E, R, B]
            std = values.std(0, correction=0 if self._algo.ensemble_std == "population" else 1)
            doubt = std * (batch.discounts > 0)  # after a terminal the target is certain
            confidence = torch.sigmoid(-doubt * self._algo.confidence_temperature) + 0.5
        actions = next_actions(self._rule, q_choice)
        returns, discounts = batch.returns.expand_as(actions), batch.discounts.expand_as(actions)
        return self._value.target(self._rule, outputs, actions, returns, discounts), confidence

    def _next_outputs(self, params: Params, batch: Batch) -> Tensor:
        """Next states' outputs [E, R, B, A(, Z)] as a rule reads them: R = K minibatches, E members evaluating."""
        members = self._algo.ensemble_size
        rows, size = batch.actions.shape
        states = batch.next_states
        params = self._network.perturb(params, self._generator)
        snapshots = self._network.members(params) // members
        all_members = self._rule.all_members or bool(self._algo.confidence_temperature)
        if rows == 1:  # all members evaluate the one minibatch they share
            outputs = self._network(params, states[0])
        elif all_members:  # all members evaluate all minibatches
            outputs = self._network(params, states.flatten(0, 1))
        else:  # each evaluates its own
            outputs = self._network(params, states.repeat(snapshots, *[1] * (states.dim() - 1)))
        outputs = outputs.unflatten(0, (snapshots, members))
        outputs = self._network.average(outputs, 0) if snapshots > 1 else outputs[0]  # [K, N, A(, Z)]
        if not all_members:
            return outputs.unsqueeze(0)  # [1, K, B, A(, Z)]
        outputs = outputs.unflatten(1, (rows, size))
        return outputs.expand(members, members if rows == 1 else rows, size, *outputs.shape[3:])

    def _clip_gradients(self) -> Tensor:
        """Scale each member's gradient to the maximum norm at most; the norms [K] before."""
        members = self._algo.ensemble_size
        gradients = [p.grad.unflatten(0, (members, -1)) for p in self.online.values() if p.grad is not None]
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

    def check_finite(self) -> None:
        """Raise where a weight is no number any more."""
        for name, weights in self.online.items():
            if not torch.isfinite(weights).all():
                raise DivergedError(f"a weight of {name} is not a finite number")

    def state_dict(self) -> dict[str, Any]:
        """Weights, lagging weights, the optimiser's moments by the weights' names, noise."""
        moments = self._optimiser.state
        return {
            "online": {name: p.detach().clone() for name, p in self.online.items()},
            "target": None if self.target is None else {name: p.clone() for name, p in self.target.items()},
            "optimiser": {
                name: {key: value.clone() for key, value in moments[p].items()}
                for name, p in self.online.items()
                if p in moments
            },
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the agent that gave this state."""
        with torch.no_grad():
            for name, p in self.online.items():
                p.copy_(state["online"][name])
        if self.target is not None:
            self.target = {name: p.to(self._device, copy=True) for name, p in state["target"].items()}
        # The settings of the optimiser come from the configuration; a checkpoint has its moments alone.
        numbers = {name: i for i, name in enumerate(self.online)}
        self._optimiser.load_state_dict(
            {
                "state": {numbers[name]: moments for name, moments in state["optimiser"].items()},
                "param_groups": self._optimiser.state_dict()["param_groups"],
            }
        )
        self._generator.set_state(state["generator"])
