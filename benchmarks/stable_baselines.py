"""An update of Stable-Baselines3's DQN against one of ours.

Both sides have Nature's network with one stream, minibatches of 32 drawn uniformly from replays with as many frames of
the same game, one-step targets from a target network, the Huber loss, gradients clipped at a norm of 10 and Adam. An
update is a whole gradient step: drawing the minibatch, making tensors of it, targets, gradients, clipping, the step of
Adam, and what each side does besides (ours checks that errors are finite). Acting, the emulator and copies of the
target network are left out, and so is our cache of next states' values.
"""

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import EPISODE, FRAMES, Side, engine_side, interleave, play
from benchmarks.sections import Findings, Scale, variants
from meanq.config.schema import Config
from meanq.envs import FrameStack, make_env
from meanq.rng import stream
from meanq.training.clock import Clock

if TYPE_CHECKING:
    from stable_baselines3 import DQN

SAME = (
    *("algo=dqn", "env=asterix", "network=nature", "algo.dueling=false", "algo.double=false", "algo.multi_step=1"),
    *("algo.prioritized=false", "algo.loss=huber", "algo.max_gradient_norm=10", "algo.interactions_per_update=1"),
)
LIBRARY = "stable-baselines3"


def stable_baselines3(scale: Scale) -> Findings:
    """Time updates with one thread and with two, by turns."""
    try:
        import stable_baselines3 as library
    except ImportError:
        return Findings(tables=[(f"{LIBRARY} is not installed: pip install {LIBRARY}", ["side"], [])])
    findings, rows = Findings(), []
    for threads in [scale.threads] if scale.threads else [n for n in (1, 2) if n <= len(os.sched_getaffinity(0))]:
        torch.set_num_threads(threads)
        sides = {}
        for name, compiled in variants(scale).items():
            capacity = f"algo.replay_capacity={scale.transitions}"
            config = scale.compose(*SAME, capacity, compiled=compiled, threads=threads)
            sides[f"ours, {name}"] = update_only(engine_side(config, scale.transitions))
        sides[LIBRARY] = library_side(config, scale.transitions)
        times = interleave(sides, scale.seconds, scale.warm_up)
        for name in sides:
            ratio = times.ratio(LIBRARY, name)
            rows.append([name, str(threads), f"{times.milliseconds(name):.2f}", f"{ratio:.2f}"])
            note = f"{LIBRARY} {library.__version__}, {threads} thread(s)"
            findings.add(f"{LIBRARY}/{threads}/{name}", times.milliseconds(name), note)
    what = f"An update of DQN, Nature, batch {config.algo.batch_size}, uniform replay"
    title = f"{what}, against {LIBRARY} {library.__version__}"
    findings.tables.append((title, ["side", "threads", "ms per update", "times as fast"], rows))
    return findings


def update_only(side: Side) -> Side:
    """The same side without acting and its environment."""
    return Side(side.config, lambda: None, side.learn, side.clock, side.run)


def library_side(config: Config, transitions: int) -> Side:
    """Build the side that uses Stable-Baselines3, with a filled replay buffer."""
    model = make_model(config, transitions)
    fill(model, config, transitions)
    return Side(config, lambda: None, lambda: model.train(1, config.algo.batch_size), Clock())


def make_model(config: Config, transitions: int) -> "DQN":
    """Stable-Baselines3's DQN with the values of a configuration of ours."""
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import Logger

    env = make_env(config.env, stream(0, "benchmark"))
    algo, shape = config.algo, (config.env.stack, *env.frame_shape[1:])

    class Game(gymnasium.Env[np.ndarray, Any]):
        """Spaces only: it is never played."""

        observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        action_space = gymnasium.spaces.Discrete(env.num_actions)

    model = DQN(
        "CnnPolicy",
        Game(),
        learning_rate=algo.learning_rate,
        buffer_size=transitions,
        batch_size=algo.batch_size,
        gamma=algo.discount,
        max_grad_norm=10.0,
        policy_kwargs={"optimizer_kwargs": {"eps": algo.adam_epsilon}},
        seed=0,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    return model


def fill(model: "DQN", config: Config, transitions: int) -> None:
    """Fill the replay buffer with stacks of real frames, in episodes as long as ours."""
    env = make_env(config.env, stream(0, "benchmark"))
    frames = play(env, min(FRAMES, transitions))
    stack = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
    before = stack.start(frames[0]).copy()
    assert model.replay_buffer is not None
    for i in range(transitions):
        terminal = i % EPISODE == EPISODE - 1
        after = stack.push(frames[i % len(frames)]).copy()
        one = (before[None], after[None], np.array([[i % 3]]), np.array([0.1 * (i % 7)]), np.array([terminal]))
        model.replay_buffer.add(*one, [{}])
        before = stack.start(frames[i % len(frames)]).copy() if terminal else after
