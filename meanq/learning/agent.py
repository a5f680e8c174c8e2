"""The agent: weights, target weights and optimiser of all K members, which act and learn as one batch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meanq.config.schema import AlgoConfig
from meanq.learning.augmentation import random_intensity, random_shift
from meanq.learning.diagnosis import diagnose
from meanq.learning.exploration import Values
from meanq.learning.learner import Learned, Learner, Noise, compiled, compiled_values
from meanq.learning.networks import Params, QNetwork
from meanq.learning.optimiser import Adam, make_optimiser
from meanq.learning.target_cache import TargetCache
from meanq.learning.values import make_value_form
from meanq.replay.buffer import Batch
from meanq.replay.frames import to_device

_RESET_SHARE = 0.2  # of fresh weights in layers that a reset changes only in part


class DivergedError(FloatingPointError):
    """Training diverged: a value or a weight is NaN or infinite."""


class Agent:
    """An ensemble of K members: online weights, target weights, and one optimiser for all."""

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
        subsets: np.random.Generator | None = None,
        fresh: Callable[[int], Params] | None = None,
    ) -> None:
        """`subsets` draws the members of `bootstrap_subset`; `fresh` makes the weights of each reset, by its number."""
        self._algo = algo
        self._value = make_value_form(algo, device)
        self._network = network
        self._learner = Learner(algo, network, self._value)
        self._step = compiled(self._learner.step, device) if compile else self._learner.step
        self._target_cache: TargetCache | None = None
        if self._learner.caching_pays:
            evaluate = compiled_values(self._learner.next_values, device) if compile else self._learner.next_values
            self._target_cache = TargetCache(evaluate, device, keep=cache_targets)
        self._device = device
        self._generator = generator  # for noisy weights and augmentation; on the same device
        self._subsets, self._fresh = subsets, fresh
        self._updates = 0  # gradient steps so far; counted for resets
        # With `shared_noise`: the noise of this interaction and of the previous one. Otherwise None.
        self._noise: Tensor | None = None
        self._last_noise: Tensor | None = None
        self.online: Params = {name: p.detach().clone().to(device) for name, p in params.items()}
        self.target: Params | None = None  # [S * K, ...]: S snapshots, newest first
        if algo.target_network is not None:
            self.target = {n: torch.cat([p] * algo.target_snapshots) for n, p in self.online.items()}
        self.gradients: Params = {}  # clipped gradients of the last step
        self._optimiser = make_optimiser(algo, self.online)

    @torch.inference_mode()
    def values(self, states: np.ndarray, *, explore: bool = False) -> np.ndarray:
        """Compute Q [K, N, A] of states [N, *state] with the online weights; `explore` adds noise to noisy layers."""
        if not explore:
            return self._values(self.online, states)
        noise = self._noise if self._noise is not None else self._network.draw_noise(self.online, self._generator)
        return self._values(self._network.perturb(self.online, noise), states)

    @torch.inference_mode()
    def noisy_values(self, seed: int) -> Values:
        """Return a function like `values` that uses one fixed draw of noise, which depends only on the seed."""
        noise = self._network.draw_noise(self.online, torch.Generator(self._device).manual_seed(seed))
        return partial(self._values, self._network.perturb(self.online, noise))

    @torch.inference_mode()
    def _values(self, params: Params, states: np.ndarray) -> np.ndarray:
        outputs = self._network(params, torch.from_numpy(states).to(self._device))
        return self._value.expectation(outputs).cpu().numpy()

    def start_interaction(self) -> None:
        """With `shared_noise`, draw the noise that acting and learning use in this interaction."""
        if not self._algo.shared_noise:
            return
        if self._noise is None:
            self._noise = self._network.draw_noise(self.online, self._generator)
        self._last_noise, self._noise = self._noise, self._network.draw_noise(self.online, self._generator)

    @torch.inference_mode()
    def diagnostics(self, states: np.ndarray) -> dict[str, float]:
        """Compute columns of training.csv that show whether all layers learn.

        `adam_share_*`: see `Adam.step_shares`. `value_spread`: the mean standard deviation of the members' value
        distributions at these states; only for categorical values.
        """
        shares = self._optimiser.step_shares() if isinstance(self._optimiser, Adam) else {}
        found = {f"adam_share_{layer}": share for layer, share in shares.items()}
        spread = self._value.spread(self._network(self.online, torch.from_numpy(states).to(self._device)))
        return found if spread is None else {**found, "value_spread": float(spread.mean())}

    def diagnose(self, states: np.ndarray) -> dict[str, float]:
        """Compute the columns of diagnosis.csv at these states, without noise."""
        return diagnose(self._network, self.online, torch.from_numpy(states).to(self._device))

    def learn(self, batch: Batch, drawn_from: int | None = None) -> Learned:
        """Take one gradient step with all members. Targets use the weights from before the step.

        `drawn_from` is the number of transitions in replay. It decides whether caching the values of next states
        saves time; None disables the cache.
        """
        batch = self._augmented(batch)
        batch = replace(batch, next_values=self._cached_values(batch, drawn_from))
        noise = self._learning_noise()
        self.gradients = {}  # free the old gradients, which are as large as the weights, before computing new ones
        self.gradients, learned = self._step(self.online, self.target, batch, noise)
        self._optimiser.step(self.gradients)
        self._updates += 1
        if self._algo.reset_every is not None and self._updates % self._algo.reset_every == 0:
            self._reset(self._updates // self._algo.reset_every)
        return learned

    @torch.no_grad()
    def _reset(self, number: int) -> None:
        """Draw the last layers anew, and with `reset_layers=all` move the others a fifth of the way to fresh weights.

        What changes begins with an optimiser that has seen no gradient. The target network changes at its next copy.
        """
        assert self._fresh is not None
        fresh = self._fresh(number)
        share = {name: 1.0 if self._network.is_last(name) else _RESET_SHARE for name in self.online}
        changed = [name for name in self.online if share[name] == 1 or self._algo.reset_layers == "all"]
        for name in changed:
            self.online[name].lerp_(fresh[name].to(self._device), share[name])
        self._optimiser.reset(changed)

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
        """Draw fresh noise, or reuse the noise of this interaction if `shared_noise` is set.

        With `shared_noise` and no target network, next states are evaluated with the noise of the previous interaction.
        This equals a target network that is a copy of the online network, including its noise, made after every
        update. A target network that is copied less often draws its own noise.
        """
        if self._noise is None:
            noise = self._learner.draw_noise(self.online, self.target, self._generator)
            return replace(noise, subset=self._draw_subset())
        evaluating = self._last_noise
        if self.target is not None:
            evaluating = self._network.draw_noise(self.target, self._generator)
        choosing = self._noise if self._algo.double else None
        return Noise(evaluating, choosing, learning=self._noise, subset=self._draw_subset())

    def _draw_subset(self) -> Tensor | None:
        """Draw the members that evaluate next states in this update; None: all do."""
        if self._algo.bootstrap_subset is None:
            return None
        assert self._subsets is not None
        drawn = self._subsets.permutation(self._algo.ensemble_size)[: self._algo.bootstrap_subset]
        return to_device(drawn, self._device)

    def _cached_values(self, batch: Batch, drawn_from: int | None) -> Tensor | None:
        """Look up V-bar(s') [R, B] in the cache. None: there is no cache, and the step computes the values itself."""
        if self._target_cache is None or self.target is None or drawn_from is None:
            return None
        if drawn_from > self._learner.draws_per_copy:  # too few transitions are drawn more than once
            return None
        if not self._target_cache.exact(self._network, self.target, batch.next_states):
            self._target_cache = None
            return None
        return self._target_cache(self.target, batch)

    @property
    def caches_targets(self) -> bool:
        """Whether the values of next states are cached. The test of this machine runs at the first use of the cache."""
        return self._target_cache is not None and self._target_cache.keep

    @torch.no_grad()
    def targets(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute targets [K, B(, Z)] and their confidence weights [K, B] (SUNRISE; None: all weights are 1)."""
        return self._learner.targets(self.online, self.target, batch, self._learning_noise())

    @torch.no_grad()
    def update_target(self) -> None:
        """Copy the online weights into the newest snapshot and drop the oldest snapshot."""
        if self.target is None:
            return
        for name, online in self.online.items():
            kept = self.target[name][: -len(online)]
            self.target[name] = torch.cat([online, kept])
        self._invalidate_cache()

    def check_finite(self) -> None:
        """Raise DivergedError if any weight is NaN or infinite."""
        for name, weights in self.online.items():
            if not torch.isfinite(weights).all():
                raise DivergedError(f"a weight of {name} is not a finite number")

    def state_dict(self) -> dict[str, Any]:
        return {
            "online": {name: p.clone() for name, p in self.online.items()},
            "target": None if self.target is None else {name: p.clone() for name, p in self.target.items()},
            "optimiser": self._optimiser.state_dict(),
            "generator": self._generator.get_state(),
            **({} if self._noise is None else {"noise": self._noise.clone(), "last_noise": self._last_noise}),
            **({} if self._subsets is None else {"subsets": self._subsets.bit_generator.state}),
            **({} if self._fresh is None else {"updates": self._updates}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, p in self.online.items():
            p.copy_(state["online"][name])
        if self.target is not None:
            for name, p in self.target.items():
                p.copy_(state["target"][name])
        # The optimiser's hyper-parameters come from the configuration; a checkpoint stores only its moments.
        self._optimiser.load_state_dict(state["optimiser"])
        self._generator.set_state(state["generator"])
        if "noise" in state:
            self._noise, self._last_noise = (state[name].to(self._device) for name in ("noise", "last_noise"))
        if self._subsets is not None:
            self._subsets.bit_generator.state = state["subsets"]
        self._updates = state.get("updates", 0)
        self._invalidate_cache()

    def _invalidate_cache(self) -> None:
        if self._target_cache is not None:
            self._target_cache.invalidate()
