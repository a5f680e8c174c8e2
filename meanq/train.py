"""The training loop. It reads like the paper's Algorithm 1."""

import contextlib
import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch

from meanq.agent import Agent
from meanq.config import AlgoConfig, Config, ConfigError
from meanq.envs import FrameStack, make_env
from meanq.evaluation import Episode, Evaluator, learned_reward, make_probes
from meanq.exploration import Explorer, random_share
from meanq.mirror import Mirror, make_mirror
from meanq.networks import QNetwork, parameter_count
from meanq.record import Record, run_directory
from meanq.replay import BernoulliMask, Replay, replay_bytes
from meanq.rng import integer_seed, stream


@dataclass
class Progress:
    """What a terminal shows while a run goes on."""

    step: int
    epsilon: float
    last_return: float | None  # of the last training game that ended


class Reporter(Protocol):
    """Tells a person what happens; see terminal.py."""

    def started(self, config: Config, directory: Path, facts: str) -> None:
        """A run begins."""

    def progress(self, progress: Progress) -> None:
        """Called every interaction: must cost nothing most of the time."""

    def evaluated(self, step: int, episodes: list[Episode]) -> None:
        """An evaluation is done."""


class Clock:
    """Seconds spent in named parts of the loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time of this block to a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start


class Run:
    """One seed of one algorithm in one environment. Making it checks what can be checked and writes nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.directory = run_directory(config)
        algo, seed = config.algo, config.seed
        self.device = resolve_device(config.device)
        self.env = make_env(config.env, stream(seed, "env"))
        self._frames = FrameStack(config.env.stack, self.env.frame_shape, self.env.frame_dtype)
        check_shift(algo, self._frames.state.shape)
        network = make_network(config, self._frames.state.shape, self.env.num_actions, self.env.frame_scale)
        self.replay_bytes = check_memory(config, self.env.frame_shape, self.env.frame_dtype)
        tune_process(thread_count(config))
        generators = [member_generator(seed, k) for k in range(algo.ensemble_size)]
        params = network.init(generators)
        self.parameters = parameter_count(params)
        noise = torch.Generator(self.device).manual_seed(integer_seed(stream(seed, "noise")))
        self.agent = Agent(algo, network, params, self.device, noise)
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
        )
        self._evaluate = Evaluator(config)
        self._probes = make_probes(config)
        self.record = Record(self.directory, config)
        self._clock = Clock()
        self._window: list[Any] = []  # what was learned since the last row of training.csv
        self._window_returns: list[float] = []
        self._games = 0
        self._game_return = 0.0
        self._last_return: float | None = None
        self._last_log = (0, 0.0)  # step, seconds
        self._periods = (config.probe.every, config.evaluation.every, config.log_every)  # of rows
        self.step = 0
        self.last_evaluation: list[Episode] = []
        self.state = "interrupted"  # until it says otherwise
        self._mirror: Mirror | None = None

    def facts(self) -> str:
        """What will be trained, in a line."""
        frames = replay_capacity(self.config)
        return (
            f"{self.config.algo.ensemble_size} member(s), {self.parameters:,} parameters; replay {frames:,} frames = "
            f"{human_bytes(self.replay_bytes)} of {human_bytes(available_memory())} free; "
            f"{self.device.type}, {torch.get_num_threads()} thread(s)"
        )

    def train(self, reporter: Reporter) -> None:
        """From the first interaction to the last; tables are written as they grow."""
        config, algo = self.config, self.config.algo
        started = time.perf_counter()
        self.record.create()
        self.record.meta(threads=torch.get_num_threads(), device=self.device.type)
        self._mirror = make_mirror(config.logger, self.directory)
        reporter.started(config, self.directory, self.facts())
        self._probe()
        self._start_game()
        for self.step in range(1, config.total_steps + 1):
            self._interact()
            if self.step >= algo.first_update and self.step % algo.interactions_per_update == 0:
                for _ in range(algo.gradient_steps):
                    self._learn()
            if algo.target_network is not None and self.step % algo.target_network == 0:
                self.agent.update_target()
            last = self.step == config.total_steps
            if last or self.step % config.probe.every == 0:
                self._probe()
            if last or self.step % config.evaluation.every == 0:
                with self._clock.time("evaluate"):
                    self.last_evaluation = self._evaluate(self.agent.values, self.step)
                self.record.evaluation(self.step, self.last_evaluation)
                reporter.evaluated(self.step, self.last_evaluation)
                self.record.flush()
            if last or self.step % config.log_every == 0:
                self._log(time.perf_counter() - started)
            if self._mirror and (last or any(self.step % every == 0 for every in self._periods)):
                self._mirror.update(self.step)
            reporter.progress(Progress(self.step, random_share(algo, self.step), self._last_return))
        self.record.weights(self.agent.online)
        seconds = time.perf_counter() - started
        self.record.meta(threads=torch.get_num_threads(), device=self.device.type, seconds=seconds)
        self.record.status("finished", step=self.step)
        self.state = "finished"

    def close_mirror(self) -> None:
        """Wait, for a bounded time, until the mirror has what the directory has."""
        if self._mirror:
            self._mirror.close(self.state)

    def stop(self, state: str, **details: Any) -> None:
        """Leave complete tables behind when the run ends before its time."""
        self.state = state
        if self.record.created:
            self.record.flush()
            self.record.status(state, step=self.step, **details)

    def _start_game(self) -> None:
        self._game_return = 0.0
        self._start_episode(self.env.reset())

    def _start_episode(self, frame: np.ndarray) -> None:
        self._frames.start(frame)
        self.replay.start(frame)
        self._explorer.start_episode()

    def _interact(self) -> None:
        """Act once and store what happened."""
        with self._clock.time("act"):
            action = self._explorer.act(
                self.step - 1, lambda: self.agent.values(self._frames.state[None], explore=True)[:, 0]
            )
        with self._clock.time("env"):
            outcome = self.env.step(action)
        self._game_return += outcome.reward
        reward = learned_reward(outcome.reward, self.config.env.clip_rewards)
        terminal = outcome.terminal or outcome.life_lost
        self.replay.append(action, reward, outcome.frame, terminal=terminal, truncated=outcome.truncated)
        if outcome.terminal or outcome.truncated:
            self._games += 1
            self._last_return = self._game_return
            self._window_returns.append(self._game_return)
            with self._clock.time("env"):
                self._start_game()
        elif outcome.life_lost:
            self._start_episode(outcome.frame)
        else:
            self._frames.push(outcome.frame)

    def _learn(self) -> None:
        """One gradient step of every member."""
        algo = self.config.algo
        progress = self.step / self.config.total_steps
        importance = algo.importance_start + (algo.importance_end - algo.importance_start) * progress
        rows = algo.ensemble_size if algo.minibatch == "independent" else 1
        with self._clock.time("sample"):
            batch = self.replay.sample(rows, algo.batch_size, importance)
        with self._clock.time("learn"):
            learned = self.agent.learn(batch)
        with self._clock.time("sample"):
            self.replay.update_priorities(batch.indices, learned.errors.cpu().numpy().astype(np.float64))
        self._window.append(learned)

    def _probe(self) -> None:
        with self._clock.time("evaluate"):
            q = self.agent.values(self._probes.states)
        self.record.probe(self.step, q, self._probes.true_q)
        self.record.flush()

    def _log(self, seconds: float) -> None:
        def mean(name: str) -> float | None:
            return float(torch.stack([getattr(x, name) for x in self._window]).mean()) if self._window else None

        self.record.training(
            {
                "step": self.step,
                "games": self._games,
                "game_return": float(np.mean(self._window_returns)) if self._window_returns else None,
                "loss": mean("loss"),
                "mean_q": mean("mean_q"),
                "gradient_norm": mean("gradient_norm"),
                "epsilon": random_share(self.config.algo, self.step),
            }
        )
        before_step, before_seconds = self._last_log
        elapsed = max(seconds - before_seconds, 1e-9)
        shares = {f"share_{part}": round(self._clock.seconds[part] / elapsed, 4) for part in PARTS}
        speed = round((self.step - before_step) / elapsed, 2)
        self.record.timing({"step": self.step, "seconds": round(seconds, 3), "steps_per_second": speed, **shares})
        self._clock.seconds.clear()
        self._last_log = (self.step, seconds)
        self._window.clear()
        self._window_returns.clear()
        self.record.flush()
        self.record.status("running", step=self.step)


PARTS = ("act", "env", "sample", "learn", "evaluate")


def make_network(config: Config, state_shape: tuple[int, ...], num_actions: int, scale: float) -> QNetwork:
    """The networks of an algorithm's members."""
    algo = config.algo
    return QNetwork(
        state_shape,
        num_actions,
        config.network,
        dueling=algo.dueling,
        scale=scale,
        atoms=algo.atoms if algo.value == "categorical" else None,
        noise=algo.noise if algo.noisy else None,
        parallel=algo.parallel_networks,
    )


def make_mask(config: Config) -> BernoulliMask | None:
    """None where every member learns from everything."""
    algo = config.algo
    if algo.mask_probability == 1:
        return None
    return BernoulliMask(algo.ensemble_size, algo.mask_probability, stream(config.seed, "masks"))


def check_shift(algo: AlgoConfig, state_shape: tuple[int, ...]) -> None:
    """Only images can be shifted, and not by more than their size."""
    if algo.random_shift == 0:
        return
    if len(state_shape) != 3:
        raise ConfigError(
            f"algo.random_shift={algo.random_shift}: these states have shape {state_shape} and are no images; "
            "write algo.random_shift=0"
        )
    if algo.random_shift >= min(state_shape[1:]):
        raise ConfigError(
            f"algo.random_shift={algo.random_shift}: images are {state_shape[1]}x{state_shape[2]}; write less than that"
        )


def member_generator(seed: int, member: int) -> torch.Generator:
    """Member k's initial weights do not depend on the size of the ensemble."""
    return torch.Generator().manual_seed(integer_seed(stream(seed, "weights", member)))


def replay_capacity(config: Config) -> int:
    """No more than the run will ever store."""
    return min(config.algo.replay_capacity, config.total_steps)


def priority_trees(algo: AlgoConfig) -> int:
    """One tree per member, or one for all; also uniform draws come from a tree."""
    return algo.ensemble_size if algo.prioritized and algo.priorities == "per_member" else 1


def resolve_device(device: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def thread_count(config: Config) -> int:
    """The cores this job may use."""
    if config.threads is not None:
        return config.threads
    return int(os.environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))


def tune_process(threads: int) -> None:
    """Settings of the whole process that the learner's speed depends on; they change no result."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # denormal Adam moments can make a step ten times slower
    # Tensors of some megabytes are freed and asked for again every step. By default glibc returns such memory to the
    # system, and getting it back costs page faults: 25 ms instead of 17 for a step of MeanQ with 1.3 million weights.
    with contextlib.suppress(OSError, AttributeError):  # not glibc: nothing to tune
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**30)


def check_memory(config: Config, frame_shape: tuple[int, ...], frame_dtype: np.dtype) -> int:
    """Bytes the replay will hold when full; not enough memory is an error now, not at step 300,000."""
    capacity = replay_capacity(config)
    masks = config.algo.ensemble_size if config.algo.mask_probability < 1 else 0
    needed = replay_bytes(capacity, frame_shape, frame_dtype, config.env.stack, priority_trees(config.algo), masks)
    available = available_memory()
    if needed > available:
        raise ConfigError(
            f"algo.replay_capacity={capacity}: the replay needs {human_bytes(needed)} and {human_bytes(available)} "
            f"are free: write {int(capacity * 0.9 * available / needed)} or less"
        )
    return needed


def available_memory() -> int:
    """Free memory, within the limits that a container or a scheduler sets on this process (cgroup v2)."""
    free = psutil.virtual_memory().available
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return free
    root = Path("/sys/fs/cgroup")
    path = root / group
    for directory in (path, *path.parents):
        if not directory.is_relative_to(root):
            break
        try:
            limit = (directory / "memory.max").read_text().strip()
            used = int((directory / "memory.current").read_text())
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdigit():  # cached files count as used, but give way
            free = min(free, max(0, int(limit) - used + int(stat.get("inactive_file", 0))))
    return free


def human_bytes(count: float) -> str:
    """'3.5 GB'."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
