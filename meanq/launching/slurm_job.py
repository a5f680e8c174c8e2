"""What a SLURM job does on its node: train its run, or its runs side by side."""

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meanq.launching.execute import Run, RunFailedError, execute, worst_code
from meanq.launching.local import Share, available_cores, gpus_of, train_on
from meanq.rundir.layout import run_directory
from meanq.rundir.reader import read_status
from meanq.training.signals import hold_stop_signals

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

OUT_OF_TIME = 4  # exit code: the run has reached its time limit too often


class SlurmJob:
    """What is pickled for one job and called on the cluster. `places` is the number of runs that share a full job."""

    def __init__(self, runs: Sequence[Run], places: int = 1) -> None:
        self.runs, self.places = list(runs), places
        self._signalled = False

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Jobs that were submitted before jobs could have several runs have `run`."""
        self.__init__(state.get("runs") or [state["run"]], state.get("places", 1))  # type: ignore[misc]

    def __call__(self) -> None:
        """Train; the process exits with the code of the worst failure."""
        hold_stop_signals()
        try:
            failures = self._train_side_by_side() if self.places > 1 else self._train()
        except Exception:
            if self._signalled:  # submitit raises if it may not queue the job again
                sys.exit(OUT_OF_TIME)
            raise
        if failures:
            sys.exit(OUT_OF_TIME if self._signalled else worst_code(failures))

    def checkpoint(self) -> "DelayedSubmission":
        """Tell submitit what to queue again after a time limit or preemption: the same, which resumes the run."""
        from submitit.core.utils import DelayedSubmission

        self._signalled = True
        return DelayedSubmission(self)

    def _train(self) -> list[RunFailedError]:
        try:
            execute(self.runs[0])
        except RunFailedError as failure:
            return [failure]
        return []

    def _train_side_by_side(self) -> list[RunFailedError]:
        """Train each run in its own process, with the same cores whenever the job starts again.

        After SIGTERM, by which SLURM announces that it will kill the job, the runs save, end, and start again: they
        train for as long as SLURM lets them, as the run of a job of its own does.
        """
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
        shares = share_out(available_cores(), gpus_of([run.config for run in self.runs]), self.places)
        while True:
            own = [
                (run, share)
                for run, share in zip(self.runs, shares, strict=False)
                if read_status(run_directory(run.config)).get("state") != "finished"
            ]
            failures = train_on([run for run, _ in own], [share for _, share in own], self.places) if own else []
            if not told:
                return failures
            told.clear()


def share_out(cores: Sequence[int], gpus: Sequence[str], places: int) -> list[Share]:
    """Divide a job into equal shares. Cores are shared where there are fewer than places."""
    each = max(1, len(cores) // places)
    return [
        Share(
            tuple(cores[core % len(cores)] for core in range(place * each, (place + 1) * each)),
            gpus[place % len(gpus)] if gpus else None,
        )
        for place in range(places)
    ]
