"""Measure the score of uniformly random actions in the MinAtar games, with the protocol of conf/env/minatar.

python scripts/measure_random_scores.py                  all five games, 2,000 episodes each (some minutes)
python scripts/measure_random_scores.py asterix -n 100   one game, quickly
"""

import argparse

import numpy as np

from meanq.config.schema import Config
from meanq.envs import make_env
from meanq.launching.plan import plan
from meanq.rng import stream

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def configuration(game: str) -> Config:
    """Compose the configuration of a run: sticky actions, difficulty ramping, no-ops and step limit."""
    planned = plan([f"env=minatar/{game}"])
    assert planned is not None
    return planned.configs[0]


def random_returns(config: Config, episodes: int, seed: int) -> np.ndarray:
    """Play episodes with random actions and return their undiscounted returns, [episodes]."""
    env = make_env(config.env, stream(seed, "random_scores", config.env.id, "env"))
    actions = stream(seed, "random_scores", config.env.id, "actions")
    returns = np.zeros(episodes)
    for episode in range(episodes):
        env.reset()
        ended = False
        while not ended:
            outcome = env.step(int(actions.integers(env.num_actions)))
            returns[episode] += outcome.reward
            ended = outcome.terminal or outcome.truncated
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("games", nargs="*", metavar="game", help=f"any of {', '.join(GAMES)}; default: all")
    parser.add_argument("-n", "--episodes", type=int, default=2000, help="episodes per game (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the games and the actions (default: 0)")
    options = parser.parse_args()
    for game in options.games:
        if game not in GAMES:
            parser.error(f"{game}: no such game; choose from {', '.join(GAMES)}")
    if options.episodes < 2:
        parser.error(f"--episodes={options.episodes}: a standard error needs at least 2")
    for game in options.games or GAMES:
        returns = random_returns(configuration(game), options.episodes, options.seed)
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        print(f"{game}: mean {returns.mean():.3f}, standard error {error:.3f}, {len(returns)} episodes", flush=True)


if __name__ == "__main__":
    main()
