"""One gradient step of the whole ensemble, as a pure function of weights, minibatches and noise.

The step has no state and draws no random numbers, so it can be compiled unchanged (see `compiled`).
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
    """Results of one gradient step, as tensors to avoid a GPU synchronisation."""

    errors: Tensor  # [R, B], errors for the priorities; averaged over members that share a minibatch
    loss: Tensor  # mean over members
    mean_q: Tensor  # mean Q of the actions taken
    gradient_norm: Tensor  # mean over members, before clipping


@dataclass
class Noise:
    """Separate noise draws for evaluating and choosing next actions, and for the loss; None: no noise."""

    evaluating: Tensor | None = None
    choosing: Tensor | None = None
    learning: Tensor | None = None
    subset: Tensor | None = None  # [E], the members that evaluate next states; None: all


Step = Callable[[Params, Params | None, Batch, Noise], tuple[Params, Learned]]
Evaluate = Callable[[Params, Tensor], Tensor]  # target weights, states [N, *state] -> [N, A]


class Learner:
    """Targets, losses and gradients of one algorithm, for K members at once."""

    def __init__(self, algo: AlgoConfig, network: QNetwork, value: ValueForm) -> None:
        self._algo = algo
        self._rule = bootstrap_rule(algo.bootstrap, algo)
        self._value = value
        self._network = network

    def draw_noise(self, online: Params, target: Params | None, generator: torch.Generator) -> Noise:
        draw = partial(self._network.draw_noise, generator=generator)
        return Noise(
            evaluating=draw(online if target is None else target),
            choosing=draw(online) if self._algo.double else None,
            learning=draw(online),
        )

    def step(self, online: Params, target: Params | None, batch: Batch, noise: Noise) -> tuple[Params, Learned]:
        """Compute the clipped gradients of all members, and statistics of the step."""
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
            # Mean over a member's minibatch, sum over members: a member's gradient does not depend on K.
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
        """Compute targets [K, B(, Z)] and their confidence weights [K, B] (SUNRISE; None: all weights are 1)."""
        if batch.next_values is not None:
            targets = batch.returns + batch.discounts * batch.next_values
            return targets.expand(self._algo.ensemble_size, -1), None
        outputs = self._next_outputs(online if target is None else target, batch, noise.evaluating, noise.subset)
        q_choice = q = self._value.expectation(outputs)  # [E, R, B, A]
        if self._algo.double:
            q_choice = self._value.expectation(self._next_outputs(online, batch, noise.choosing, noise.subset))
        confidence = None
        if self._algo.confidence_temperature:
            # Disagreement of the members on the next state's value, where each member chooses its own action.
            values = torch.take_along_dim(q, q_choice.argmax(-1, keepdim=True), -1).squeeze(-1)  # [E, R, B]
            # The standard deviation of a single member is 0.
            std = values.std(0, correction=int(self._algo.ensemble_std == "sample" and len(values) > 1))
            uncertainty = std * (batch.discounts > 0)  # the target of a terminal step is certain
            confidence = torch.sigmoid(-uncertainty * self._algo.confidence_temperature) + 0.5
        actions = next_actions(self._rule, q_choice)
        returns, discounts = batch.returns.expand_as(actions), batch.discounts.expand_as(actions)
        return self._value.target(self._rule, outputs, actions, returns, discounts), confidence

    @property
    def caching_pays(self) -> bool:
        """Whether V-bar(s') depends only on s' and the target weights, and caching it saves time.

        It saves time if every member evaluates the minibatches of all members, which costs more than learning from
        them. It saves little for a single minibatch of 32: one missing value costs as much as all 32.
        """
        algo = self._algo
        return (
            algo.target_network is not None
            and algo.target_network > algo.interactions_per_update  # otherwise no cached value is used twice
            and algo.value == "scalar"
            and not (algo.noisy or algo.double or algo.random_shift or algo.random_intensity)
            and algo.confidence_temperature is None
            and self._rule.same_for_all
            and algo.bootstrap_subset is None
            and self._rule.select is self._rule.evaluate  # so the value of the chosen action is the maximum
            and algo.minibatch == "independent"
            and algo.ensemble_size > 1
        )

    @property
    def draws_per_copy(self) -> int:
        """Number of transitions drawn between two updates of the target network."""
        algo = self._algo
        assert algo.target_network is not None
        draws = algo.ensemble_size * algo.batch_size * algo.gradient_steps
        return draws * algo.target_network // algo.interactions_per_update

    def next_values(self, target: Params, states: Tensor) -> Tensor:
        """Reduce all members' values of states [N, *state] to [N, A] by the bootstrap rule; requires `caching_pays`."""
        outputs = self._network(target, states).unflatten(0, (-1, self._algo.ensemble_size))
        return self._rule.evaluate(outputs.mean(0).unsqueeze(1)).squeeze(0)

    def _next_outputs(self, params: Params, batch: Batch, noise: Tensor | None, subset: Tensor | None) -> Tensor:
        """Evaluate next states: [E, R, B, A(, Z)], the input of a bootstrap rule; R = K, and E = K, |subset| or 1."""
        members = learning = self._algo.ensemble_size
        rows, size = batch.actions.shape
        states = batch.next_states
        params = self._network.perturb(params, noise)
        snapshots = self._network.members(params) // members
        if subset is not None:
            each = {name: p.unflatten(0, (snapshots, members, -1)) for name, p in params.items()}
            params, members = {name: p[:, subset].flatten(0, 2) for name, p in each.items()}, len(subset)
        all_members = self._rule.all_members or bool(self._algo.confidence_temperature)
        if rows == 1:  # all members evaluate one shared minibatch
            outputs = self._network(params, states[0])
        elif all_members:  # all members evaluate all minibatches
            outputs = self._network(params, states.flatten(0, 1))
        else:  # each member evaluates its own minibatch
            outputs = self._network(params, states.repeat(snapshots, *[1] * (states.dim() - 1)))
        outputs = outputs.unflatten(0, (snapshots, members))
        outputs = self._network.average(outputs, 0) if snapshots > 1 else outputs[0]  # [K, N, A(, Z)]
        if not all_members:
            return outputs.unsqueeze(0)  # [1, K, B, A(, Z)]
        outputs = outputs.unflatten(1, (rows, size))
        return outputs.expand(members, learning if rows == 1 else rows, size, *outputs.shape[3:])

    def _clip(self, gradients: Params) -> tuple[Params, Tensor]:
        """Clip each member's gradient norm in place. Returns the gradients and the norms [K] before clipping."""
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
    """Return the gradients of a loss and its auxiliary outputs."""
    if torch.compiler.is_compiling():  # torch.compile cannot trace autograd; without it torch.func is slower
        return torch.func.grad(loss, has_aux=True)(params)
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    total, rest = loss(leaves)
    gradients = torch.autograd.grad(
        total, list(leaves.values()), materialize_grads=True
    )  # zeros, where one is not used
    return dict(zip(leaves, gradients, strict=True)), rest


def compiled(step: Step, device: torch.device) -> Step:
    """Compile the step into one graph. The first call takes up to a minute, or seconds if torch's cache has it."""
    torch.compiler.reset()  # a process may train several runs in turn, and torch keeps only a few graphs
    graph = _fused(step, device)
    if device.type != "cuda":
        return graph

    def replay(online: Params, target: Params | None, batch: Batch, noise: Noise) -> tuple[Params, Learned]:
        gradients, learned = graph(online, target, batch, noise)
        # The next replay of the CUDA graph overwrites its outputs. Gradients are used before that; the rest is kept.
        return gradients, Learned(**{name: value.clone() for name, value in vars(learned).items()})

    return replay


def compiled_values(next_values: Evaluate, device: torch.device) -> Evaluate:
    """Compile `Learner.next_values`. Call this after `compiled`, which resets the compiler."""
    graph = _fused(next_values, device)
    return graph if device.type != "cuda" else lambda target, states: graph(target, states).clone()


def _fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    if device.type != "cuda":
        return torch.compile(function, fullgraph=True, dynamic=False)
    options: dict[str, Any] = {"triton.cudagraphs": True}
    if "deterministic" in torch._inductor.list_options():  # since torch 2.10
        # Otherwise the fastest of several kernels is chosen by measuring, and each rounds sums in its own way.
        options["deterministic"] = True
    graph = torch.compile(function, fullgraph=True, dynamic=False, options=options)

    def replay(*inputs: object) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return graph(*inputs)

    return replay


def why_not_compile(device: torch.device) -> str | None:
    """Return why torch cannot compile on this machine, e.g. a missing C++ compiler; None if it can."""
    try:
        torch.compile(torch.sin, fullgraph=True)(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # errors of the toolchain, wrapped by torch
        return str(error).strip().partition("\n")[0]
    return None
