"""Measure what uniformly random actions score in the MinAtar games, under the protocol of conf/env/minatar.

python scripts/measure_random_scores.py                  all five games, 2,000 episodes each (some minutes)
python scripts/measure_random_scores.py asterix -n 100   one game, quickly
"""

import argparse

import numpy as np

from meanq.config.schema import Config
from meanq.envs import make_env
from meanq.launching.plan import plan, register_schema
from meanq.rng import stream

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def configuration(game: str) -> Config:
    """What a run of this game uses: sticky actions, difficulty ramp, no-ops and the limit of steps."""
    planned = plan([f"env=minatar/{game}"])
    assert planned is not None
    return planned.configs[0]


def random_returns(config: Config, episodes: int, seed: int) -> np.ndarray:
    """The undiscounted returns of that many episodes, [episodes]."""
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
    """Print a line per game."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("games", nargs="*", metavar="game", help=f"any of {', '.join(GAMES)}; all where none is named")
    parser.add_argument("-n", "--episodes", type=int, default=2000, help="per game (2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the games and of the actions (0)")
    options = parser.parse_args()
    for game in options.games:
        if game not in GAMES:
            parser.error(f"{game}: no such game; choose from {', '.join(GAMES)}")
    if options.episodes < 2:
        parser.error(f"--episodes={options.episodes}: a standard error needs 2 or more")
    register_schema()
    for game in options.games or GAMES:
        returns = random_returns(configuration(game), options.episodes, options.seed)
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        print(f"{game}: mean {returns.mean():.3f}, standard error {error:.3f}, {len(returns)} episodes", flush=True)


if __name__ == "__main__":
    main()
