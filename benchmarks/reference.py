"""A straightforward implementation of MeanQ, DQN, Rainbow, and MeanQ with Rainbow's techniques.

It has K modules, K optimisers and loops over members. The batched learner of meanq/ is timed against it and tested
against it (tests/benchmarks/test_reference.py). It is simple, but not deliberately slow: every network evaluates all
minibatches in one call, and pixels are converted once.
"""

import copy
import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.reference_replay import Minibatch, ReferenceReplay, UniformReplay
from meanq.config.schema import AlgoConfig, Config, NetworkConfig
from meanq.envs import FrameStack, make_env
from meanq.rng import stream
from meanq.training.clock import Clock

IMPORTANCE_EXPONENT = 0.4


class NoisyLinear(nn.Module):
    """A dense layer with factorised Gaussian noise (Fortunato et al. 2018); without noise in evaluation mode."""

    def __init__(self, fan_in: int, fan_out: int, sigma: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full_like(self.weight, sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full_like(self.bias, sigma * bound))
        self.register_buffer("weight_noise", torch.zeros_like(self.weight), persistent=False)
        self.register_buffer("bias_noise", torch.zeros_like(self.bias), persistent=False)

    def reset_noise(self) -> None:
        fan_out, fan_in = self.weight.shape
        for_inputs, for_outputs = (e.sign() * e.abs().sqrt() for e in (torch.randn(fan_in), torch.randn(fan_out)))
        self.weight_noise = torch.outer(for_outputs, for_inputs)
        self.bias_noise = for_outputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute [N, in] -> [N, out]."""
        if not self.training:
            return F.linear(x, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * self.weight_noise
        return F.linear(x, weight, self.bias + self.bias_sigma * self.bias_noise)


class Member(nn.Module):
    """One Q network with one stream, or two if it is dueling, each with its own hidden layer."""

    def __init__(
        self, state_shape: tuple[int, int, int], num_actions: int, config: NetworkConfig, algo: AlgoConfig
    ) -> None:
        super().__init__()
        channels, height, width = state_shape
        layers: list[nn.Module] = []
        for conv in config.convolutions:
            layers += [nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride), nn.ReLU()]
            channels = conv.channels
            height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
        self.features = nn.Sequential(*layers, nn.Flatten())
        self._atoms = algo.atoms if algo.value == "categorical" else 0
        size = channels * height * width

        def head(outputs: int) -> nn.Sequential:
            def dense(fan_in: int, fan_out: int) -> nn.Module:
                return NoisyLinear(fan_in, fan_out, algo.noise) if algo.noisy else nn.Linear(fan_in, fan_out)

            return nn.Sequential(dense(size, config.hidden), nn.ReLU(), dense(config.hidden, outputs))

        self.value = head((1 if algo.dueling else num_actions) * max(self._atoms, 1))
        self.advantage = head(num_actions * max(self._atoms, 1)) if algo.dueling else None

    def reset_noise(self) -> None:
        """Draw new noise in all noisy layers."""
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.reset_noise()

    def forward(self, x: Tensor) -> Tensor:
        """Compute Q [N, A], or log-probabilities [N, A, Z], of scaled states [N, C, H, W]."""
        x = self.features(x)
        outputs = self._per_action(self.value(x))
        if self.advantage is not None:
            advantage = self._per_action(self.advantage(x))
            outputs = outputs + advantage - advantage.mean(1, keepdim=True)
        return outputs.log_softmax(2) if self._atoms else outputs

    def _per_action(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._atoms) if self._atoms else x


class ReferenceAgent:
    """K members, with target networks if the algorithm has them."""

    def __init__(
        self,
        algo: AlgoConfig,
        network: NetworkConfig,
        state_shape: tuple[int, int, int],
        num_actions: int,
        scale: float,
    ) -> None:
        assert algo.bootstrap == "mean" and algo.target_snapshots == 1 and algo.gradient_steps == 1
        self._algo = algo
        self._scale = scale  # factor for input states: 1/255 for pixels
        self._support = torch.linspace(algo.value_min, algo.value_max, algo.atoms)
        self.members = [Member(state_shape, num_actions, network, algo) for _ in range(algo.ensemble_size)]
        self.lagging: list[Member] | None = None
        if algo.target_network is not None:
            self.lagging = [copy.deepcopy(member).requires_grad_(False) for member in self.members]
        self._optimisers = [
            torch.optim.Adam(member.parameters(), lr=algo.learning_rate, eps=algo.adam_epsilon)
            for member in self.members
        ]

    @torch.no_grad()
    def values(self, state: np.ndarray) -> np.ndarray:
        """Compute Q [K, A] of one state, with fresh noise."""
        return self._expectation(self._outputs(self.members, self._input(torch.from_numpy(state[None]))))[:, 0].numpy()

    def learn(self, batches: list[Minibatch]) -> list[np.ndarray]:
        """Take one step with every member on its own minibatch. Returns each member's errors [B] for its priorities."""
        targets = self.targets(batches)  # computed before any member changes
        return [self._learn(k, batch, target) for k, (batch, target) in enumerate(zip(batches, targets, strict=True))]

    @torch.no_grad()
    def targets(self, batches: list[Minibatch]) -> list[Tensor]:
        """Compute each member's targets r + discount * V [B], or their distributions [B, Z].

        V is the mean over members at the action with the highest mean value.
        """
        x = self._input(torch.cat([batch.next_states for batch in batches]))
        outputs = self._outputs(self.lagging or self.members, x)  # [K, K * B, A(, Z)]
        chosen_by = self._outputs(self.members, x) if self._algo.double else outputs
        actions = self._expectation(chosen_by).mean(0).argmax(1)
        mean = (outputs.exp() if self._algo.value == "categorical" else outputs).mean(0)
        chosen = mean[torch.arange(len(actions)), actions]  # [K * B(, Z)]
        rewards = torch.cat([batch.rewards for batch in batches])
        discounts = torch.cat([batch.discounts for batch in batches])
        if self._algo.value == "categorical":
            targets = self._project(rewards, discounts, chosen)
        else:
            targets = rewards + discounts * chosen
        return list(targets.split([len(batch.rewards) for batch in batches]))

    def update_targets(self) -> None:
        """Copy the online weights to the target networks."""
        for member, lagging in zip(self.members, self.lagging or [], strict=True):
            lagging.load_state_dict(member.state_dict())

    def _learn(self, k: int, batch: Minibatch, target: Tensor) -> np.ndarray:
        member, optimiser = self.members[k], self._optimisers[k]
        member.reset_noise()
        outputs = member(self._input(batch.states))
        taken = outputs[torch.arange(len(outputs)), batch.actions]
        if self._algo.value == "categorical":
            losses = -(target * taken).sum(1)
            errors = losses.detach()
        else:
            losses = (target - taken).square()
            errors = (target - taken).detach().abs()
        optimiser.zero_grad()
        (batch.weights * losses).mean().backward()
        if self._algo.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(member.parameters(), self._algo.max_gradient_norm)
        optimiser.step()
        return errors.numpy()

    def _outputs(self, networks: list[Member], x: Tensor) -> Tensor:
        """Evaluate all networks with fresh noise: [K, N, A(, Z)]."""
        for network in networks:
            network.reset_noise()
        return torch.stack([network(x) for network in networks])

    def _expectation(self, outputs: Tensor) -> Tensor:
        return (outputs.exp() * self._support).sum(-1) if self._algo.value == "categorical" else outputs

    def _project(self, rewards: Tensor, discounts: Tensor, distribution: Tensor) -> Tensor:
        """Project the distribution [N, Z] of r + discount * Z' on the support (C51, Bellemare et al. 2017)."""
        algo, atoms = self._algo, self._algo.atoms
        spacing = (algo.value_max - algo.value_min) / (atoms - 1)
        moved = (rewards[:, None] + discounts[:, None] * self._support).clamp(algo.value_min, algo.value_max)
        position = ((moved - algo.value_min) / spacing).clamp(0, atoms - 1)
        lower = position.floor().clamp(max=atoms - 2)  # so that the atom above exists
        share = position - lower
        index = lower.long() + atoms * torch.arange(len(rewards))[:, None]
        projected = torch.zeros(distribution.numel())
        projected.index_add_(0, index.flatten(), (distribution * (1 - share)).flatten())
        projected.index_add_(0, index.flatten() + 1, (distribution * share).flatten())
        return projected.view_as(distribution)

    def _input(self, states: Tensor) -> Tensor:
        return states.float() * self._scale


class ReferenceRun:
    """The training loop of the reference: act, store, sample, learn, update priorities, in the same environment."""

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.clock = Clock()
        algo = config.algo
        self.env = make_env(config.env, stream(config.seed, "env"))
        self._frames = FrameStack(config.env.stack, self.env.frame_shape, self.env.frame_dtype)
        shape = self._frames.state.shape
        self.agent = ReferenceAgent(algo, config.network, shape, self.env.num_actions, self.env.frame_scale)
        make_replay = partial(ReferenceReplay, members=algo.ensemble_size) if algo.prioritized else UniformReplay
        self.replay = make_replay(
            slots=capacity,
            frame_shape=self.env.frame_shape,
            stack=config.env.stack,
            discount=algo.discount,
            generator=stream(config.seed, "replay"),
        )
        self._generator = stream(config.seed, "actions")

    def start_game(self) -> None:
        self._start_episode(self.env.reset())

    def interact(self) -> None:
        """Perform one action and store the transition."""
        with self.clock.time("act"):
            action = self._act()
        with self.clock.time("env"):
            outcome = self.env.step(action)
        reward = max(-1.0, min(1.0, outcome.reward)) if self.config.env.clip_rewards else outcome.reward
        self.replay.append(action, reward, outcome.frame, terminal=outcome.terminal or outcome.life_lost)
        if outcome.terminal or outcome.truncated:
            self.start_game()
        elif outcome.life_lost:
            self._start_episode(outcome.frame)
        else:
            self._frames.push(outcome.frame)

    def learn(self) -> None:
        """Take one gradient step with every member."""
        algo = self.config.algo
        with self.clock.time("sample"):
            batches = self.replay.sample(algo.batch_size, IMPORTANCE_EXPONENT)
        with self.clock.time("learn"):
            errors = self.agent.learn(batches)
        with self.clock.time("sample"):
            for k, batch in enumerate(batches):
                self.replay.update_priorities(k, batch.slots, errors[k] ** algo.priority_exponent)

    def _act(self) -> int:
        algo = self.config.algo
        never_random = algo.exploration in ("ucb", "greedy") and not algo.epsilon.with_noise
        if not never_random and self._generator.random() < algo.epsilon.end:
            return int(self._generator.integers(self.env.num_actions))
        q = self.agent.values(self._frames.state)
        score = q.mean(0) + algo.ucb_lambda * q.std(0) if algo.exploration == "ucb" else q.mean(0)
        return int(score.argmax())

    def _start_episode(self, frame: np.ndarray) -> None:
        self._frames.start(frame)
        self.replay.start(frame)
