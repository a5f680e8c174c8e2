"""Train MeanQ and the methods it is compared with: one run, or with -m a sweep.

meanq run
    MeanQ on MinAtar Asterix, minutes on a CPU
meanq run algo=meanq algo.ensemble_size=10 env=minatar/seaquest
    any group can be chosen and any field overridden
meanq run -m algo=meanq,ens_dqn env=seaquest seed=0-4
    a sweep: ten runs of Atari Seaquest
meanq run --cfg job algo=avg_dqn env=hero
    show the configuration of a run
meanq run -m +study=target_network scale=minatar --dry-run
    list the runs of a study of ablations/; without --dry-run, train them
"""

import sys

from meanq.launching.command import run_command


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run_command(__doc__ or ""))


if __name__ == "__main__":
    main()
