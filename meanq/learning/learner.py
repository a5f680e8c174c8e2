"""One gradient step of a whole ensemble, as a pure function of weights, minibatches and noise.

Nothing here has state or draws a random number, so the step can be compiled as it stands (see `compiled`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meanq.config.schema import AlgoConfig
from meanq.learning.bootstrap import bootstrap_rule, next_actions
from meanq.learning.networks import Params, QNetwork
from meanq.learning.values import ValueForm
from meanq.replay.buffer import Batch


@dataclass
class Learned:
    """What one gradient step leaves behind; tensors, so that a GPU need not be waited for."""

    errors: Tensor  # [R, B], what priorities are made of; averaged over members that share a minibatch
    loss: Tensor  # mean over members
    mean_q: Tensor  # of the actions taken
    gradient_norm: Tensor  # mean over members, before clipping


@dataclass
class Noise:
    """Draws for the networks that take part in a step, each noisy in its own way; None: not noisy."""

    evaluating: Tensor | None = None
    choosing: Tensor | None = None
    learning: Tensor | None = None


Step = Callable[[Params, Params | None, Batch, Noise], tuple[Params, Learned]]
Evaluate = Callable[[Params, Tensor], Tensor]  # lagging weights, states [N, *state] -> [N, A]


class Learner:
    """The rules of an algorithm, applied to K members at once."""

    def __init__(self, algo: AlgoConfig, network: QNetwork, value: ValueForm) -> None:
        self._algo = algo
        self._rule = bootstrap_rule(algo.bootstrap)
        self._value = value
        self._network = network

    def draw_noise(self, online: Params, target: Params | None, generator: torch.Generator) -> Noise:
        """Fresh noise for one step."""
        draw = partial(self._network.draw_noise, generator=generator)
        return Noise(
            evaluating=draw(online if target is None else target),
            choosing=draw(online) if self._algo.double else None,
            learning=draw(online),
        )

    def step(self, online: Params, target: Params | None, batch: Batch, noise: Noise) -> tuple[Params, Learned]:
        """The clipped gradients of all members, towards targets computed with the weights as they are."""
        with torch.no_grad():
            targets, confidence = self.targets(online, target, batch, noise)  # [K, B(, Z)], [K, B] or None
        weights = batch.weights
        for factor in (confidence, batch.masks):
            if factor is not None:
                weights = weights * factor
        states = batch.states if len(batch.states) > 1 else batch.states[0]

        def loss(params: Params) -> tuple[Tensor, tuple[Tensor, ...]]:
            outputs = self._network(self._network.perturb(params, noise.learning), states)  # [K, B, A(, Z)]
            taken = self._value.at(outputs, batch.actions.expand(outputs.shape[:2]))
            losses, errors = self._value.losses(taken, targets)  # [K, B]
            # The mean over a member's minibatch and the sum over members: a member's gradient does not depend on K.
            member_loss = (weights * losses).mean(1)
            return member_loss.sum(), (member_loss.detach(), errors, taken.detach())

        gradients, (member_loss, errors, taken) = _differentiate(loss, online)
        gradients, norms = self._clip(gradients)
        return gradients, Learned(
            errors=errors if len(batch.states) == len(errors) else errors.mean(0, keepdim=True),
            loss=member_loss.mean(),
            mean_q=self._value.expectation(taken).mean(),
            gradient_norm=norms.mean(),
        )

    def targets(
        self, online: Params, target: Params | None, batch: Batch, noise: Noise
    ) -> tuple[Tensor, Tensor | None]:
        """What members should learn [K, B(, Z)], and how far to trust it [K, B] (SUNRISE; None: wholly)."""
        if batch.next_values is not None:
            targets = batch.returns + batch.discounts * batch.next_values
            return targets.expand(self._algo.ensemble_size, -1), None
        outputs = self._next_outputs(online if target is None else target, batch, noise.evaluating)
        q_choice = q = self._value.expectation(outputs)  # [E, R, B, A]
        if self._algo.double:
            q_choice = self._value.expectation(self._next_outputs(online, batch, noise.choosing))
        confidence = None
        if self._algo.confidence_temperature:
            # How far members disagree on the next state's value, each by the action of its own choice.
            values = torch.take_along_dim(q, q_choice.argmax(-1, keepdim=True), -1).squeeze(-1)  # [E, R, B]
            # A single member has a standard deviation of 0.
            std = values.std(0, correction=int(self._algo.ensemble_std == "sample" and len(values) > 1))
            doubt = std * (batch.discounts > 0)  # after a terminal the target is certain
            confidence = torch.sigmoid(-doubt * self._algo.confidence_temperature) + 0.5
        actions = next_actions(self._rule, q_choice)
        returns, discounts = batch.returns.expand_as(actions), batch.discounts.expand_as(actions)
        return self._value.target(self._rule, outputs, actions, returns, discounts), confidence

    @property
    def next_values_pay(self) -> bool:
        """Whether V-bar(s') depends on nothing but s' and lagging weights, and computing it once saves time.

        It does where every member evaluates all members' minibatches, which costs more than learning from them. One
        minibatch of 32 is evaluated at once anyway, if only one of its values is missing.
        """
        algo = self._algo
        return (
            algo.target_network is not None
            and algo.target_network > algo.interactions_per_update  # or nothing would be asked for twice
            and algo.value == "scalar"
            and not (algo.noisy or algo.double or algo.random_shift or algo.random_intensity)
            and algo.confidence_temperature is None
            and self._rule.same_for_all
            and self._rule.select is self._rule.evaluate  # so the best value is the value of the best action
            and algo.minibatch == "independent"
            and algo.ensemble_size > 1
        )

    @property
    def draws_per_copy(self) -> int:
        """How many transitions are drawn between two copies of the weights."""
        algo = self._algo
        assert algo.target_network is not None
        draws = algo.ensemble_size * algo.batch_size * algo.gradient_steps
        return draws * algo.target_network // algo.interactions_per_update

    def next_values(self, target: Params, states: Tensor) -> Tensor:
        """What the rule makes of all members' values of states [N, *state], where `next_values_pay`: [N, A]."""
        outputs = self._network(target, states).unflatten(0, (-1, self._algo.ensemble_size))
        return self._rule.evaluate(outputs.mean(0).unsqueeze(1)).squeeze(0)

    def _next_outputs(self, params: Params, batch: Batch, noise: Tensor | None) -> Tensor:
        """Next states' outputs [E, R, B, A(, Z)] as a rule reads them: R = K minibatches, E members evaluating."""
        members = self._algo.ensemble_size
        rows, size = batch.actions.shape
        states = batch.next_states
        params = self._network.perturb(params, noise)
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

    def _clip(self, gradients: Params) -> tuple[Params, Tensor]:
        """Each member's gradient scaled, in place, to the maximum norm at most, and the norms [K] before."""
        members = self._algo.ensemble_size
        by_member = {name: gradient.unflatten(0, (members, -1)) for name, gradient in gradients.items()}
        parts = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in by_member.values()]
        norms = torch.stack(parts).norm(dim=0)
        if self._algo.max_gradient_norm is None:
            return {name: gradient.contiguous() for name, gradient in gradients.items()}, norms
        scale = (self._algo.max_gradient_norm / (norms + 1e-6)).clamp(max=1.0)
        clipped = {
            name: gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1))).flatten(0, 1).contiguous()
            for name, gradient in by_member.items()
        }
        return clipped, norms


def _differentiate(
    loss: Callable[[Params], tuple[Tensor, tuple[Tensor, ...]]], params: Params
) -> tuple[Params, tuple[Tensor, ...]]:
    """The gradients of a loss, and what else it returns."""
    if torch.compiler.is_compiling():  # autograd cannot be traced, torch.func can; outside it is the slower of the two
        return torch.func.grad(loss, has_aux=True)(params)
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    total, rest = loss(leaves)
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True)), rest


def compiled(step: Step, device: torch.device) -> Step:
    """The same step as one graph of fused kernels. Its first call takes up to a minute, or seconds from a cache."""
    torch.compiler.reset()  # a process may train many runs, one after the other; torch keeps a few graphs only
    graph = _fused(step, device)
    if device.type != "cuda":
        return graph

    def replay(online: Params, target: Params | None, batch: Batch, noise: Noise) -> tuple[Params, Learned]:
        gradients, learned = graph(online, target, batch, noise)
        # The next replay overwrites these; gradients are used before it, the rest is kept for the tables.
        return gradients, Learned(**{name: value.clone() for name, value in vars(learned).items()})

    return replay


def compiled_values(next_values: Evaluate, device: torch.device) -> Evaluate:
    """The same function, fused; to be made after the step is."""
    graph = _fused(next_values, device)
    return graph if device.type != "cuda" else lambda target, states: graph(target, states).clone()


def _fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    if device.type != "cuda":
        return torch.compile(function, fullgraph=True, dynamic=False)
    graph = torch.compile(function, fullgraph=True, dynamic=False, options={"triton.cudagraphs": True})

    def replay(*inputs: object) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return graph(*inputs)

    return replay


def why_not_compile(device: torch.device) -> str | None:
    """What keeps torch from compiling here, such as a missing C++ compiler; None: nothing does."""
    try:
        torch.compile(torch.sin, fullgraph=True)(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # whatever the tools chain raises, wrapped by torch
        return str(error).strip().partition("\n")[0]
    return None
