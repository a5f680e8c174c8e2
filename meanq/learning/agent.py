"""Acting and learning for a whole ensemble at once."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meanq.config.schema import AlgoConfig
from meanq.learning.augmentation import random_intensity, random_shift
from meanq.learning.exploration import Values
from meanq.learning.learner import Learned, Learner, Noise, compiled, compiled_values
from meanq.learning.networks import Params, QNetwork
from meanq.learning.optimiser import Adam
from meanq.learning.target_cache import NextValues
from meanq.learning.values import make_value_form
from meanq.replay.buffer import Batch


class DivergedError(FloatingPointError):
    """Learning has produced something that is not a finite number: going on is useless."""


class Agent:
    """K members: online weights, lagging weights, and their optimiser."""

    def __init__(
        self,
        algo: AlgoConfig,
        network: QNetwork,
        params: Params,
        device: torch.device,
        generator: torch.Generator,
        *,
        compile: bool = False,
        cache_targets: bool = True,
    ) -> None:
        self._algo = algo
        self._value = make_value_form(algo, device)
        self._network = network
        self._learner = Learner(algo, network, self._value)
        self._step = compiled(self._learner.step, device) if compile else self._learner.step
        self._next_values: NextValues | None = None
        if self._learner.next_values_pay:
            evaluate = compiled_values(self._learner.next_values, device) if compile else self._learner.next_values
            self._next_values = NextValues(evaluate, device, keep=cache_targets)
        self._device = device
        self._generator = generator  # of noisy weights and augmented images; lives on the device
        # Where acting and learning share their noise: the draw of this interaction, and of the one before.
        self._noise: Tensor | None = None
        self._last_noise: Tensor | None = None
        self.online: Params = {name: p.detach().clone().to(device) for name, p in params.items()}
        self.target: Params | None = None  # [S * K, ...], the newest snapshot first
        if algo.target_network is not None:
            self.target = {n: torch.cat([p] * algo.target_snapshots) for n, p in self.online.items()}
        self.gradients: Params = {}  # of the last step, clipped
        self._optimiser = Adam(self.online, algo.learning_rate, algo.adam_epsilon)

    @torch.inference_mode()
    def values(self, states: np.ndarray, *, explore: bool = False) -> np.ndarray:
        """Q [K, N, A] of states [N, *state] with the online weights; with noise in them only to explore."""
        if not explore:
            return self._values(self.online, states)
        noise = self._noise if self._noise is not None else self._network.draw_noise(self.online, self._generator)
        return self._values(self._network.perturb(self.online, noise), states)

    @torch.inference_mode()
    def noisy_values(self, seed: int) -> Values:
        """The same as `values`, but with one draw of noise in the weights, which depends on the seed alone."""
        noise = self._network.draw_noise(self.online, torch.Generator(self._device).manual_seed(seed))
        return partial(self._values, self._network.perturb(self.online, noise))

    @torch.inference_mode()
    def _values(self, params: Params, states: np.ndarray) -> np.ndarray:
        outputs = self._network(params, torch.from_numpy(states).to(self._device))
        return self._value.expectation(outputs).cpu().numpy()

    def start_interaction(self) -> None:
        """With `shared_noise`: draw the noise of this interaction, which acting and learning use."""
        if not self._algo.shared_noise:
            return
        if self._noise is None:
            self._noise = self._network.draw_noise(self.online, self._generator)
        self._last_noise, self._noise = self._noise, self._network.draw_noise(self.online, self._generator)

    @torch.inference_mode()
    def diagnostics(self, states: np.ndarray) -> dict[str, float]:
        """What shows whether learning gets through: columns of training.csv.

        `adam_share_*`: see `Adam.step_shares`. `value_spread`: the mean standard deviation of members'
        distributions at these states, where values are distributions.
        """
        found = {f"adam_share_{layer}": share for layer, share in self._optimiser.step_shares().items()}
        spread = self._value.spread(self._network(self.online, torch.from_numpy(states).to(self._device)))
        return found if spread is None else {**found, "value_spread": float(spread.mean())}

    def learn(self, batch: Batch, drawn_from: int | None = None) -> Learned:
        """One step of all members, towards targets computed with the weights before the step.

        The number of transitions that the batch was drawn from decides whether keeping next states' values pays; None:
        they are not kept.
        """
        batch = self._augmented(batch)
        batch = replace(batch, next_values=self._values_of_next(batch, drawn_from))
        noise = self._learning_noise()
        self.gradients = {}  # as large as the weights: the last ones go before the next are made
        self.gradients, learned = self._step(self.online, self.target, batch, noise)
        self._optimiser.step(self.gradients)
        return learned

    def _augmented(self, batch: Batch) -> Batch:
        algo, states, next_states = self._algo, batch.states, batch.next_states
        if algo.random_shift:
            states = random_shift(states, algo.random_shift, self._generator)
            next_states = random_shift(next_states, algo.random_shift, self._generator)
        if algo.random_intensity:
            states = random_intensity(states, algo.random_intensity, self._generator)
            next_states = random_intensity(next_states, algo.random_intensity, self._generator)
        return replace(batch, states=states, next_states=next_states)

    def _learning_noise(self) -> Noise:
        """Fresh noise; or, where acting and learning share it, that of the interaction.

        Then next states are evaluated under the noise of the interaction before, as by a target network that is a copy
        of the whole online network, noise included, after every update. A lagging network draws its own.
        """
        if self._noise is None:
            return self._learner.draw_noise(self.online, self.target, self._generator)
        evaluating = self._last_noise
        if self.target is not None:
            evaluating = self._network.draw_noise(self.target, self._generator)
        return Noise(evaluating=evaluating, choosing=self._noise if self._algo.double else None, learning=self._noise)

    def _values_of_next(self, batch: Batch, drawn_from: int | None) -> Tensor | None:
        """V-bar(s') [R, B] from those that are kept; None: the step computes what it needs."""
        if self._next_values is None or self.target is None or drawn_from is None:
            return None
        if drawn_from > self._learner.draws_per_copy:  # too few are drawn twice
            return None
        if not self._next_values.exact(self._network, self.target, batch.next_states):
            self._next_values = None
            return None
        return self._next_values(self.target, batch)

    @property
    def caches_targets(self) -> bool:
        """Whether next states' values are kept; whether this machine allows it is known after the first step."""
        return self._next_values is not None and self._next_values.keep

    @torch.no_grad()
    def targets(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """What members should learn [K, B(, Z)], and how far to trust it [K, B] (SUNRISE; None: wholly)."""
        return self._learner.targets(self.online, self.target, batch, self._learning_noise())

    @torch.no_grad()
    def update_target(self) -> None:
        """Take the online weights as the newest snapshot and drop the oldest."""
        if self.target is None:
            return
        for name, online in self.online.items():
            kept = self.target[name][: -len(online)]
            self.target[name] = torch.cat([online, kept])
        self._forget()

    def check_finite(self) -> None:
        """Raise where a weight is no number any more."""
        for name, weights in self.online.items():
            if not torch.isfinite(weights).all():
                raise DivergedError(f"a weight of {name} is not a finite number")

    def state_dict(self) -> dict[str, Any]:
        """Weights, lagging weights, the optimiser's moments by the weights' names, noise."""
        return {
            "online": {name: p.clone() for name, p in self.online.items()},
            "target": None if self.target is None else {name: p.clone() for name, p in self.target.items()},
            "optimiser": self._optimiser.state_dict(),
            "generator": self._generator.get_state(),
            **({} if self._noise is None else {"noise": self._noise.clone(), "last_noise": self._last_noise}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the agent that gave this state."""
        for name, p in self.online.items():
            p.copy_(state["online"][name])
        if self.target is not None:
            self.target = {name: p.to(self._device, copy=True) for name, p in state["target"].items()}
        # The settings of the optimiser come from the configuration; a checkpoint has its moments alone.
        self._optimiser.load_state_dict(state["optimiser"])
        self._generator.set_state(state["generator"])
        if "noise" in state:
            self._noise, self._last_noise = (state[name].to(self._device) for name in ("noise", "last_noise"))
        self._forget()

    def _forget(self) -> None:
        """The lagging weights are others now."""
        if self._next_values is not None:
            self._next_values.forget()
