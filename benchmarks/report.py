"""Time a report: python -m benchmarks.report [--help].

The benchmark writes a synthetic study with 4 games, 10 methods and 5 seeds to a temporary directory and makes its
report in a separate process, as a user would.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

from tests.synthetic_runs import gaussian_q, write_run

GAMES = {"asterix": 8503.3, "bank_heist": 753.1, "hero": 30826.4, "seaquest": 42055.0}  # human scores
METHODS = {  # number of members
    "dqn": 1,
    "dqn_no_target": 1,
    "avg_dqn": 1,
    "ens_dqn": 5,
    "meanq": 5,
    "meanq_no_target": 5,
    "rainbow": 1,
    "rainbow_large": 1,
    "rainbow_more_updates": 1,
    "meanq_rainbow": 5,
}
STATES, ACTIONS, EPISODES, EVALUATIONS, TOTAL = 50, 6, 20, 20, 100_000


def write_study(root: Path, games: int = len(GAMES), seeds: int = 5) -> int:
    """Write synthetic runs and return their number."""
    generator = np.random.default_rng(0)
    steps = [TOTAL * (i + 1) // EVALUATIONS for i in range(EVALUATIONS)]
    chosen = list(GAMES)[:games]
    for env, (number, (label, members)), seed in product(chosen, enumerate(METHODS.items()), range(seeds)):
        skill = GAMES[env] * (0.2 + 0.05 * number) * generator.uniform(0.9, 1.1)
        shape = 1 - np.exp(-np.arange(1, EVALUATIONS + 1) / 6)
        returns = {s: skill * x * generator.uniform(0.8, 1.2, EPISODES) for s, x in zip(steps, shape, strict=True)}
        values = {s: 2 + 3 * x + generator.normal(0, 0.2) for s, x in zip(steps, shape, strict=True)}
        q = {
            s: gaussian_q(generator, STATES, members, ACTIONS, 0.3, 0.5, 2 + 3 * x)
            for s, x in zip(steps, shape, strict=True)
        }
        overrides = {"env.kind": "atari", "env.reference_score": GAMES[env], "env.id": env, "network.name": "nature"}
        write_run(
            root, env, label, seed, returns, values, discounted=2.0 + 0.3 * number, q=q,
            seconds=1000.0 + 200 * members + seed, overrides=overrides,
        )  # fmt: skip
    return len(chosen) * len(METHODS) * seeds


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds per game and method (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "runs"
        count = write_study(root, seeds=options.seeds)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "analysis.report", str(root)], check=True, capture_output=True)
        seconds = time.perf_counter() - start
        page = root / "report" / "index.html"
        print(f"report of {count} runs: {seconds:.1f} s; {page.name} has {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
