"""Finite MDPs: exact values of policies, and of the best one."""

from dataclasses import dataclass

import numpy as np

_ROUNDING = 1e-10  # relative; a smaller gain does not change an action


@dataclass(frozen=True)
class FiniteMDP:
    """States 0 .. S-1, in each of which an episode may begin. An episode ends with the probability that is left over.

    Values are expected discounted sums of rewards up to the end of the episode, without any time limit.
    """

    frames: np.ndarray  # [S, ...], the frame of each state
    transition: np.ndarray  # [S, A, S], probabilities of next states; their sum is below 1 where the episode may end
    reward: np.ndarray  # [S, A], expected

    def policy_value(self, actions: np.ndarray, discount: float) -> np.ndarray:
        """V [S] of the policy that takes actions [S]: the solution of V = r + discount P V."""
        states = np.arange(len(self.reward))
        return _solve(self.transition[states, actions], self.reward[states, actions], discount)

    def random_value(self, discount: float) -> np.ndarray:
        """V [S] of the policy that takes every action with the same probability."""
        return _solve(self.transition.mean(1), self.reward.mean(1), discount)

    def optimal_q(self, discount: float) -> np.ndarray:
        """Q* [S, A] by policy iteration: the policy is evaluated exactly and made greedy until nothing is gained."""
        states, actions = np.arange(len(self.reward)), self.reward.argmax(1)
        while True:
            q = self.reward + discount * self.transition @ self.policy_value(actions, discount)
            gain = q.max(1) - q[states, actions]
            better = gain > _ROUNDING * np.abs(q).max()
            if not better.any():
                return q
            actions = np.where(better, q.argmax(1), actions)


def _solve(transition: np.ndarray, reward: np.ndarray, discount: float) -> np.ndarray:
    return np.linalg.solve(np.eye(len(reward)) - discount * transition, reward)
