"""Names of the files of a run directory, and where it is."""

import re
from pathlib import Path

from meanq.config.schema import Config

CONFIG, STATUS, META = "config.yaml", "status.json", "meta.json"


EVALUATIONS, TRAINING, TIMINGS = "evaluations.csv", "training.csv", "timings.csv"


PROBES, WEIGHTS, LOCK = "probes.npz", "weights.safetensors", "lock"


_TEMPORARY = re.compile(r"\.[a-z.]+\.\w{8}")  # what a crash leaves of write_atomically


def run_directory(config: Config) -> Path:
    """A function of what the run is; nothing depends on the clock."""
    assert config.label is not None
    return Path(config.root) / config.study / config.env.name / config.label / f"seed_{config.seed}"
