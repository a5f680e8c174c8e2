"""Train MeanQ and the methods it is compared with: one run, or with -m a sweep.

python -m meanq.run
    MeanQ on MinAtar Asterix, minutes on a CPU
python -m meanq.run algo=meanq algo.ensemble_size=10 env=minatar/seaquest
    any group can be chosen and any field overridden
python -m meanq.run -m algo=meanq,ens_dqn env=seaquest seed=0-4
    a sweep: ten runs of Atari Seaquest
python -m meanq.run --cfg job algo=avg_dqn env=hero
    show the configuration of a run
python -m meanq.run -m +study=target_network scale=minatar --dry-run
    list the runs of a study of ablations/; without --dry-run, train them
"""

import sys

from meanq.launching.command import run_command


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run_command(__doc__ or ""))


if __name__ == "__main__":
    main()
