"""Print hashes of short runs, to check whether a code change affects training.

    python scripts/golden_runs.py > before.txt     # then change the code
    python scripts/golden_runs.py | diff before.txt -

The runs cover every algorithm on MinAtar, and MeanQ in every kind of environment. Compare on the same machine, since
another machine may round differently.
"""

import hashlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from meanq.config.schema import CONFIG_DIR
from tests.short_runs import SHORT, train

ELSEWHERE = [option for option in SHORT if not option.startswith("env")]
SMALL = ("network=data_efficient", "total_steps=130", "env.options.max_frames=160", "algo.replay_capacity=100")
RUNS = {path.stem: (f"algo={path.stem}", *SHORT) for path in sorted((CONFIG_DIR / "algo").glob("[a-z]*.yaml"))} | {
    "chain": ("env=chain", *ELSEWHERE),
    "gymnasium": ("env=gymnasium", *ELSEWHERE),
    "atari": ("env=breakout", *ELSEWHERE, *SMALL),
    "atari, released": ("env=breakout", *ELSEWHERE, *SMALL, "algo=meanq_rainbow", "protocol=released"),
}
FILES = ("weights.safetensors", "evaluations.csv", "training.csv", "probes.npz")


def main() -> None:
    for name, overrides in RUNS.items():
        with tempfile.TemporaryDirectory() as root:
            directory = train(Path(root), *overrides).directory
            hashes = [hashlib.sha256((directory / file).read_bytes()).hexdigest()[:12] for file in FILES]
        print(f"{name:28}", *hashes, flush=True)


if __name__ == "__main__":
    main()
