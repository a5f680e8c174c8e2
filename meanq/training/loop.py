"""The training loop. It reads like the paper's Algorithm 1."""

from typing import Any

import numpy as np

from meanq.config.schema import Config
from meanq.envs import Environment, FrameStack
from meanq.learning.agent import Agent, DivergedError
from meanq.learning.exploration import Explorer
from meanq.replay.buffer import Replay
from meanq.training.clock import Clock
from meanq.training.evaluation import learned_reward
from meanq.training.statistics import Statistics


class Loop:
    """Act, store the transition, learn from minibatches, and copy the online weights to the target network."""

    def __init__(self, config: Config, env: Environment, agent: Agent, explorer: Explorer, replay: Replay) -> None:
        self.config = config
        self.env, self.agent, self.replay = env, agent, replay
        self.step = 0  # interactions so far
        self._explorer = explorer
        self._frames = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
        self.clock, self.statistics = Clock(), Statistics()

    def advance(self) -> None:
        """One interaction, and the updates that are due after it."""
        algo = self.config.algo
        self.step += 1
        self.interact()
        if self.step >= algo.first_update and self.step % algo.interactions_per_update == 0:
            for _ in range(algo.gradient_steps):
                self.learn()
        if algo.target_network is not None and self.step % algo.target_network == 0:
            self.agent.update_target()

    def interact(self) -> None:
        """Act once and store the transition."""
        with self.clock.time("act"):
            self.agent.start_interaction()
            action = self._explorer.act(
                self.step - 1, lambda: self.agent.values(self._frames.state[None], explore=True)[:, 0]
            )
        with self.clock.time("env"):
            outcome = self.env.step(action)
        self.statistics.add_reward(outcome.reward)
        reward = learned_reward(outcome.reward, self.config.env.clip_rewards)
        terminal = outcome.terminal or outcome.life_lost
        with self.clock.time("sample"):
            self.replay.append(action, reward, outcome.frame, terminal=terminal, truncated=outcome.truncated)
        if outcome.terminal or outcome.truncated:
            self.statistics.end_game()
            self.start_game()
        elif outcome.life_lost:
            with self.clock.time("env"):
                frame = self.env.start_life(outcome.frame)
            self._start_episode(frame, keep_stack=self.config.env.stack_over_lives)
        else:
            self._frames.push(outcome.frame)

    def learn(self) -> None:
        """One gradient step of every member."""
        algo = self.config.algo
        progress = min(1.0, self.step / (algo.importance_steps or self.config.total_steps))
        importance = algo.importance_start + (algo.importance_end - algo.importance_start) * progress
        minibatches = algo.ensemble_size if algo.minibatch == "independent" else 1
        with self.clock.time("sample"):
            batch = self.replay.sample(minibatches, algo.batch_size, importance)
        with self.clock.time("learn"):
            learned = self.agent.learn(batch, len(self.replay))
            errors = (
                learned.errors.cpu().numpy().astype(np.float64)
            )  # waits for a GPU, so that its time is counted here
        with self.clock.time("sample"):
            if not np.isfinite(errors).all():
                raise self._diverged("the loss is not a finite number")
            self.replay.update_priorities(batch.indices, errors)
        self.statistics.add_update(learned)

    def start_game(self) -> None:
        with self.clock.time("env"):
            frame = self.env.reset()
        self._start_episode(frame, keep_stack=False)

    def _start_episode(self, frame: np.ndarray, *, keep_stack: bool) -> None:
        if keep_stack:
            self._frames.push(frame)
        else:
            self._frames.start(frame)
        self.replay.start(frame, keep_stack=keep_stack)
        self._explorer.start_episode()

    def check_finite(self) -> None:
        """Raise DivergedError where a weight is not a finite number."""
        try:
            self.agent.check_finite()
        except DivergedError as error:
            raise self._diverged(str(error)) from None

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"step {self.step}: {what}; try a smaller algo.learning_rate or algo.max_gradient_norm (the last "
            "checkpoint is from before)"
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next interaction depends on, but the replay's frames, which a checkpoint stores apart."""
        return {
            "agent": self.agent.state_dict(),
            "explorer": self._explorer.state_dict(),
            "replay": self.replay.state_dict(),
            "env": self.env.state_dict(),
            "frames": self._frames.state,
        }

    def load_state_dict(self, step: int, state: dict[str, Any]) -> None:
        """Continue after this step as the loop that gave the state."""
        self.step = step
        self.agent.load_state_dict(state["agent"])
        self._explorer.load_state_dict(state["explorer"])
        self.replay.load_state_dict(state["replay"])
        self.env.load_state_dict(state["env"])
        self._frames.state[:] = state["frames"]
