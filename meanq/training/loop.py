"""The training loop. It reads like the paper's Algorithm 1."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.envs import FrameStack, make_env
from meanq.learning.agent import Agent, DivergedError
from meanq.learning.build import (
    check_augmentation,
    make_mask,
    make_network,
    member_generator,
    priority_trees,
    replay_capacity,
)
from meanq.learning.exploration import Explorer, random_share
from meanq.learning.networks import parameter_count
from meanq.mirrors.process import Mirror, make_mirror
from meanq.replay.buffer import Replay, replay_bytes
from meanq.rng import integer_seed, stream
from meanq.rundir.checkpoint import CheckpointError, Checkpoints, Saved, check_state
from meanq.rundir.circumstances import circumstances
from meanq.rundir.files import read_status
from meanq.rundir.layout import run_directory
from meanq.rundir.writer import Record, reason_of
from meanq.training.clock import Clock
from meanq.training.evaluation import Episode, Evaluator, evaluated_values, learned_reward, make_probes
from meanq.training.machine import (
    MEMORY_SHARE,
    available_memory,
    human_bytes,
    resolve_compile,
    resolve_device,
    thread_count,
    trim_memory,
    tune_process,
)
from meanq.training.signals import StopSignals


@dataclass
class Progress:
    """What a terminal shows while a run goes on."""

    step: int
    epsilon: float
    last_return: float | None  # of the last training game that ended


class Reporter(Protocol):
    """Tells a person what happens; see terminal.py."""

    def started(self, config: Config, directory: Path, facts: str, step: int) -> None:
        """A run begins, or goes on after this step."""

    def warn(self, message: str) -> None:
        """Something is not as it should be, but the run can go on."""

    def progress(self, progress: Progress) -> None:
        """Called every interaction: must cost nothing most of the time."""

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        """An evaluation is done."""


class Run:
    """One seed of one algorithm in one environment. Making it checks what can be checked and writes nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.directory = run_directory(config)
        algo, seed = config.algo, config.seed
        self.device = resolve_device(config.device)
        self.env = make_env(config.env, stream(seed, "env"))
        self._frames = FrameStack(config.env.stack, self.env.frame_shape, self.env.frame_dtype)
        check_augmentation(algo, self._frames.state.shape)
        network = make_network(config, self._frames.state.shape, self.env.num_actions, self.env.frame_scale)
        self.replay_bytes = check_memory(config, self.env.frame_shape, self.env.frame_dtype)
        tune_process(thread_count(config))
        generators = [member_generator(seed, k) for k in range(algo.ensemble_size)]
        params = network.init(generators)
        self.parameters = parameter_count(params)
        self._seen = network.seen
        noise = torch.Generator(self.device).manual_seed(integer_seed(stream(seed, "noise")))
        self.compiled, self._why_compiled = resolve_compile(config, self.device)
        self.agent = Agent(
            algo, network, params, self.device, noise, compile=self.compiled, cache_targets=config.cache_targets
        )
        self._explorer = Explorer(algo, self.env.num_actions, stream(seed, "actions"), stream(seed, "members"))
        self.replay = Replay(
            capacity=replay_capacity(config),
            frame_shape=self.env.frame_shape,
            frame_dtype=self.env.frame_dtype,
            stack=config.env.stack,
            multi_step=algo.multi_step,
            discount=algo.discount,
            priority_trees=priority_trees(algo),
            prioritized=algo.prioritized,
            priority_exponent=algo.priority_exponent,
            generator=stream(seed, "replay"),
            device=self.device,
            mask=make_mask(config),
            frames_on_device=config.replay_on_device,
        )
        self._evaluate = Evaluator(config)
        self._probes = make_probes(config)
        self.record = Record(self.directory, config)
        self._checkpoints = Checkpoints(self.directory)
        self._signals = StopSignals()
        self._savable = True
        self._saved = 0  # the step of the newest checkpoint
        self._clock = Clock()
        # Since the last row of training.csv:
        self._window: dict[str, list[torch.Tensor]] = {name: [] for name in LEARNED}
        self._window_returns: list[float] = []
        self._games = 0
        self._game_return = 0.0
        self._last_return: float | None = None
        self._started = 0.0  # on the process's clock, as if the run had never been interrupted
        self._last_log = (0, 0.0)  # step, seconds
        self.step = 0
        self.last_evaluation: list[Episode] = []
        self._mirror: Mirror | None = None
        self._trimmed = False  # whether the memory that compiling took has been given back

    def facts(self) -> str:
        """What will be trained, in a line."""
        frames = replay_capacity(self.config)
        return (
            f"{self.config.algo.ensemble_size} member(s), {self.parameters:,} parameters{self._blind()}; "
            f"replay {frames:,} frames = "
            f"{human_bytes(self.replay_bytes)} of {human_bytes(available_memory())} free; "
            f"{self.device.type}, {torch.get_num_threads()} thread(s); learner "
            f"{'' if self.compiled else 'not '}compiled ({self._why_compiled})"
        )

    def _blind(self) -> str:
        """Whether strides keep part of an image from the network, which may be the part that matters (Assault's)."""
        image = self.env.frame_shape[1:]
        if self._seen == image:
            return ""
        return f" that read {'x'.join(map(str, self._seen))} of {'x'.join(map(str, image))} pixels"

    def train(self, reporter: Reporter) -> None:
        """From the first interaction, or from where an interrupted run was last saved, to the last.

        A step is followed by looking: evaluation, probes, rows in the tables. Looking changes nothing that training
        depends on, so a run is always saved between the two; a resumed run begins by looking.
        """
        self.record.open()
        try:
            if read_status(self.directory).get("state") != "finished":  # by another process, a moment ago
                with self._signals:
                    self._train(reporter)
        except Exception as error:
            self._stop("failed", **reason_of(error))
            raise
        except BaseException:  # Ctrl-C, or whoever else ends the process
            self._stop("interrupted")
            raise
        finally:
            if self._mirror:
                self._mirror.close(read_status(self.directory).get("state", ""))
            self.record.close()

    def _train(self, reporter: Reporter) -> None:
        config, algo = self.config, self.config.algo
        saved = self._load(reporter)
        if saved is None:
            self._begin(reporter)
        else:
            self._resume(saved, reporter)
            self._look(reporter)
        while self.step < config.total_steps:
            self.step += 1
            self._interact()
            if self.step >= algo.first_update and self.step % algo.interactions_per_update == 0:
                for _ in range(algo.gradient_steps):
                    self._learn()
            if algo.target_network is not None and self.step % algo.target_network == 0:
                self.agent.update_target()
            if self.step % config.checkpoint.every == 0 or self.step == config.total_steps:
                with self._clock.time("save"):
                    self._save()
            self._breathe()
            self._look(reporter)
        self._finish()

    def _stop(self, state: str, **details: Any) -> None:
        """Say how the run ended before its time, if it did. The tables on disk are whole already."""
        if read_status(self.directory).get("state") == "finished":
            return
        with contextlib.suppress(OSError):  # the disk may be full, which is perhaps why
            self.record.status(state, step=self.step, **details)

    def _begin(self, reporter: Reporter) -> None:
        self._started = time.perf_counter()
        self._clock.take()  # from now on
        self.record.start()
        with self._clock.time("env"):
            self._start_game()
        try:
            check_state(self.env.state_dict(), "env")  # now, and not at the first checkpoint
        except NotImplementedError as error:
            self._savable = False
            reporter.warn(f"{error}, so there will be no checkpoints: if interrupted, the run starts again")
        self._announce(reporter)
        self._probe()

    def _announce(self, reporter: Reporter) -> None:
        with self._clock.time("save"):
            self.record.meta(**self._machine())
            reporter.started(self.config, self.directory, self.facts(), self.step)
            self._mirror = make_mirror(self.config.logger, self.directory)

    def _load(self, reporter: Reporter) -> Saved | None:
        """The last good checkpoint; None: there never was one."""
        saved = self._checkpoints.load(reporter.warn)
        known = read_status(self.directory).get("checkpoint")
        if saved is None and known is not None:
            raise CheckpointError(
                f"{self._checkpoints.directory} has lost the checkpoint of step {known}; remove {self.directory} to "
                "start the run again from the beginning"
            )
        return saved

    def _resume(self, saved: Saved, reporter: Reporter) -> None:
        state = saved.state
        self.step = self._saved = saved.step
        versions = self._versions()
        remedy = f"resume it where it began, or remove {self.directory} to start again"
        if state["versions"]["device"] != versions["device"]:
            raise CheckpointError(
                f"device={self.config.device}: the run began on {state['versions']['device']} and cannot go on on "
                f"{versions['device']}, whose random numbers are others; {remedy}"
            )
        if state["compiled"] != self.compiled:
            began = "compiled" if state["compiled"] else "not compiled"
            raise CheckpointError(
                f"compile={self.config.compile}: the run began {began} and cannot go on otherwise "
                f"({self._why_compiled}); {remedy}"
            )
        for name, version in state["versions"].items():
            now = versions.get(name)
            if version and now and version != now:
                reporter.warn(f"saved with {name} {version} and resumed with {now}: results may differ")
        torch.set_num_threads(state["threads"])  # another number would round otherwise
        self.agent.load_state_dict(state["agent"])
        self._explorer.load_state_dict(state["explorer"])
        self.replay.load_state_dict(state["replay"])
        saved.restore_frames(self.replay)
        self.env.load_state_dict(state["env"])
        self._frames.state[:] = state["frames"]
        self._games, self._game_return, self._last_return = state["games"], state["game_return"], state["last_return"]
        self._window = {name: list(values.to(self.device)) for name, values in state["window"].items()}
        self._window_returns = state["window_returns"]
        self._started = time.perf_counter() - state["seconds"]
        self._last_log = (self.step, state["seconds"])  # speed is measured from here
        self._clock.take()
        self.record.resume(self.step, state["record"])
        self._announce(reporter)

    def _save(self) -> None:
        """Make a checkpoint of the state after this step, before looking."""
        if not self._savable or self._saved == self.step:
            return
        self._check_finite()
        self.record.flush()
        state = {
            "agent": self.agent.state_dict(),
            "explorer": self._explorer.state_dict(),
            "replay": self.replay.state_dict(),
            "env": self.env.state_dict(),
            "frames": self._frames.state,
            "games": self._games,
            "game_return": self._game_return,
            "last_return": self._last_return,
            "window": {
                name: torch.stack(values) if values else torch.zeros(0) for name, values in self._window.items()
            },
            "window_returns": self._window_returns,
            "record": self.record.position(),
            "seconds": time.perf_counter() - self._started,
            "threads": torch.get_num_threads(),
            "compiled": self.compiled,
            "versions": self._versions(),
        }
        self._checkpoints.save(self.step, state, self.replay)
        self._saved = self.step
        self.record.checkpointed(self.step)
        self.record.status("running", step=self.step)

    def _machine(self) -> dict[str, Any]:
        """What roundings, and so results in their last digits, depend on."""
        return {"threads": torch.get_num_threads(), "device": self.device.type, "compiled": self.compiled}

    def _versions(self) -> dict[str, str | None]:
        """What results may depend on beside the configuration."""
        now = circumstances()
        return {**now["versions"], "commit": now["commit"], "device": self.device.type}

    def _breathe(self) -> None:
        """Called often, always between a step and what looking at it writes: show life, and stop where it is wanted."""
        self.record.heartbeat()
        if self._signals.wanted is None:
            return
        with self._clock.time("save"):
            self._save()
        self.record.status("interrupted", step=self.step)
        self._signals.hand_over()
        self.record.status("running", step=self.step)

    def _look(self, reporter: Reporter) -> None:
        """Evaluate, probe, log, where it is time to; evaluation first, since the run may be saved while it lasts."""
        config, step = self.config, self.step
        last = step == config.total_steps
        evaluating = last or step % config.evaluation.every == 0
        probing = last or step % config.probe.every == 0
        logging = last or step % config.log_every == 0
        if evaluating:
            with self._clock.time("evaluate"):
                values = evaluated_values(self.agent, config, self.step)
                self.last_evaluation = self._evaluate(values, self.step, self._breathe)
            with self._clock.time("save"):
                self.record.evaluation(self.step, self.last_evaluation)
                reporter.evaluated(self.step, self.last_evaluation)
                self.record.flush()
        if probing:
            self._probe()
        if logging:
            self._log()
        if self._mirror and (evaluating or probing or logging):
            with self._clock.time("save"):
                self._mirror.update(self.step)
        reporter.progress(Progress(self.step, random_share(config.algo, self.step), self._last_return))

    def _finish(self) -> None:
        self._check_finite()
        self.record.weights(self.agent.online)
        seconds = time.perf_counter() - self._started
        self.record.meta(**self._machine(), cached_targets=self.agent.caches_targets, seconds=seconds)
        self.record.status("finished", step=self.step)
        if not self.config.checkpoint.keep:
            self._checkpoints.remove()

    def _check_finite(self) -> None:
        try:
            self.agent.check_finite()
        except DivergedError as error:
            raise self._diverged(str(error)) from None

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"step {self.step}: {what}; try a smaller algo.learning_rate or algo.max_gradient_norm (the last "
            "checkpoint is from before)"
        )

    def _start_game(self) -> None:
        self._game_return = 0.0
        self._start_episode(self.env.reset())

    def _start_episode(self, frame: np.ndarray, *, keep_stack: bool = False) -> None:
        if keep_stack:
            self._frames.push(frame)
        else:
            self._frames.start(frame)
        self.replay.start(frame, keep_stack=keep_stack)
        self._explorer.start_episode()

    def _interact(self) -> None:
        """Act once and store what happened."""
        with self._clock.time("act"):
            self.agent.start_interaction()
            action = self._explorer.act(
                self.step - 1, lambda: self.agent.values(self._frames.state[None], explore=True)[:, 0]
            )
        with self._clock.time("env"):
            outcome = self.env.step(action)
        self._game_return += outcome.reward
        reward = learned_reward(outcome.reward, self.config.env.clip_rewards)
        terminal = outcome.terminal or outcome.life_lost
        with self._clock.time("sample"):
            self.replay.append(action, reward, outcome.frame, terminal=terminal, truncated=outcome.truncated)
        if outcome.terminal or outcome.truncated:
            self._games += 1
            self._last_return = self._game_return
            self._window_returns.append(self._game_return)
            with self._clock.time("env"):
                self._start_game()
        elif outcome.life_lost:
            with self._clock.time("env"):
                frame = self.env.start_life(outcome.frame)
            self._start_episode(frame, keep_stack=self.config.env.stack_over_lives)
        else:
            self._frames.push(outcome.frame)

    def _learn(self) -> None:
        """One gradient step of every member."""
        algo = self.config.algo
        progress = min(1.0, self.step / (algo.importance_steps or self.config.total_steps))
        importance = algo.importance_start + (algo.importance_end - algo.importance_start) * progress
        rows = algo.ensemble_size if algo.minibatch == "independent" else 1
        with self._clock.time("sample"):
            batch = self.replay.sample(rows, algo.batch_size, importance)
        with self._clock.time("learn"):
            learned = self.agent.learn(batch, len(self.replay))
            if self.compiled and not self._trimmed:
                trim_memory()
                self._trimmed = True
        with self._clock.time("sample"):
            errors = learned.errors.cpu().numpy().astype(np.float64)
            if not np.isfinite(errors).all():
                raise self._diverged("the loss is not a finite number")
            self.replay.update_priorities(batch.indices, errors)
        for name, values in self._window.items():
            values.append(getattr(learned, name))

    def _probe(self) -> None:
        with self._clock.time("evaluate"):
            q = self.agent.values(self._probes.states)
        with self._clock.time("save"):
            self.record.probe(self.step, q, self._probes.true_q)
            self.record.flush()

    def _log(self) -> None:
        seconds = time.perf_counter() - self._started
        before_step, before_seconds = self._last_log
        elapsed = max(seconds - before_seconds, 1e-9)
        shares = {f"share_{part}": round(spent / elapsed, 4) for part, spent in self._clock.take().items()}
        speed = round((self.step - before_step) / elapsed, 2)
        self._last_log = (self.step, seconds)
        with self._clock.time("save"):
            self.record.timing({"step": self.step, "seconds": round(seconds, 3), "steps_per_second": speed, **shares})
            means = {name: float(torch.stack(got).mean()) if got else None for name, got in self._window.items()}
            self.record.training(
                {
                    "step": self.step,
                    "games": self._games,
                    "game_return": float(np.mean(self._window_returns)) if self._window_returns else None,
                    **means,
                    "epsilon": random_share(self.config.algo, self.step),
                    **self.agent.diagnostics(self._probes.states),
                }
            )
            for values in self._window.values():
                values.clear()
            self._window_returns.clear()
            self.record.flush()
            self.record.status("running", step=self.step)


LEARNED = ("loss", "mean_q", "gradient_norm")


def check_memory(config: Config, frame_shape: tuple[int, ...], frame_dtype: np.dtype) -> int:
    """Bytes the replay will hold when full; not enough memory is an error now, not at step 300,000."""
    capacity = replay_capacity(config)
    masks = config.algo.ensemble_size if config.algo.mask_probability < 1 else 0
    needed = replay_bytes(capacity, frame_shape, frame_dtype, config.env.stack, priority_trees(config.algo), masks)
    device = resolve_device(config.device)
    on_gpu = config.replay_on_device and device.type == "cuda"
    available = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory()
    if needed > available:
        whose, remedy = "", ""
        if on_gpu:
            whose, remedy = " on the GPU", ", or replay_on_device=false"
        elif MEMORY_SHARE in os.environ:
            whose, remedy = " for each run", ", or fewer hydra.launcher.jobs"
        raise ConfigError(
            f"algo.replay_capacity={capacity}: the replay needs {human_bytes(needed)} and {human_bytes(available)} "
            f"are free{whose}: write {int(capacity * 0.9 * available / needed)} or less{remedy}"
        )
    return needed
