"""What a run directory holds: file names, states and the columns of evaluations.csv.

    <root>/<study>/<env>/<label>/seed_<n>/
      config.yaml          the resolved configuration; never changes
      evaluations.csv      one row per evaluation episode, see Episode
      probes.npz           step [T], q [T, P, K, A]; where they are known, true_q [P, A] and, exactly, the
                           policy_value [T, P] of the policy that is greedy in the mean of q over members
      training.csv         losses, values and schedules: means since the previous row
      diagnosis.csv        dormant units and rank of features at each probe; not for a network of the user's own
      timings.csv          speed, and where the time went; the only table that depends on the machine
      weights.safetensors  online weights of all members, written at the end
      status.json          state, progress and, after a failure, the traceback; its modification time is the heartbeat
      meta.json            versions, commit, host, duration, steps of resuming, hashes of the user's own code
      checkpoint/          the state needed to resume (checkpoint.py); removed when the run has finished
      lock                 held by the process that trains here
      tensorboard/, wandb/, mirror.json, mirror.log      written by loggers (meanq.mirrors)

While a sweep goes on, <root>/.sweeps/ lists its runs (sweeps.py).
Files are replaced as a whole, never edited in place, so a crash leaves the last complete version.
"""

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meanq.config.schema import Config

CONFIG, STATUS, META, LOCK = "config.yaml", "status.json", "meta.json", "lock"
EVALUATIONS, TRAINING, DIAGNOSIS, TIMINGS = TABLES = ("evaluations.csv", "training.csv", "diagnosis.csv", "timings.csv")
PROBES, WEIGHTS, CHECKPOINT_DIR = "probes.npz", "weights.safetensors", "checkpoint"
MIRROR_LOG, MIRROR_STATE, TENSORBOARD_DIR, WANDB_DIR = "mirror.log", "mirror.json", "tensorboard", "wandb"
_WRITTEN = (CONFIG, STATUS, META, *TABLES, PROBES, WEIGHTS, MIRROR_STATE)
TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, _WRITTEN))})\.\w{{8}}")  # left by write_atomically after a crash
SEED_DIR = re.compile(r"seed_\d+")

ENDED_STATES = ("finished", "failed", "interrupted")
WRITTEN_STATES = ("running", *ENDED_STATES)  # in status.json
# What a reader reports, in the order of the summary; progress.py derives those that status.json cannot know.
STATES = ("finished", "running", "starting", "waiting", "stalled?", "interrupted", "killed", "failed", "unreadable")


@dataclass
class Episode:
    """One greedy evaluation episode, and the agent's value of its initial state: a row of evaluations.csv."""

    episode_return: float = 0.0  # column `return`
    discounted_return: float = 0.0  # of rewards as learned from, i.e. clipped where the environment clips
    discounted_return_unclipped: float = 0.0
    discounted_return_first_life: float = 0.0  # as learned from, up to the first loss of life
    length: int = 0
    value: float = 0.0  # V(s_0) = max_a mean_k Q_k(s_0, a)

    def row(self, step: int, episode: int) -> dict[str, Any]:
        """Cells by column."""
        return dict(zip(EVALUATION_COLUMNS, (step, episode, *asdict(self).values()), strict=True))


EVALUATION_COLUMNS = ("step", "episode", *(f.name.removeprefix("episode_") for f in fields(Episode)))


def run_directory(config: "Config") -> Path:
    """Depends on the configuration only, never on the clock."""
    assert config.label is not None
    return Path(config.root) / config.study / config.env.name / config.label / f"seed_{config.seed}"
