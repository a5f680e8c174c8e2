"""The TensorBoard logger."""

import shutil
from pathlib import Path

from meanq.config.schema import LoggerConfig
from meanq.mirrors.sink import Point, Sink
from meanq.rundir.layout import TENSORBOARD_DIR


class TensorboardSink(Sink):
    """Event files in `tensorboard/`. They cannot be cut back, so they are always written anew from the first row."""

    def __init__(self, logger: LoggerConfig, directory: Path) -> None:
        from tensorboardX import SummaryWriter

        shutil.rmtree(directory / TENSORBOARD_DIR, ignore_errors=True)
        self._writer = SummaryWriter(str(directory / TENSORBOARD_DIR), write_to_disk=True)

    def log(self, point: Point) -> None:
        """Write scalars and histograms, under the same names as in W&B."""
        for name, value in point.scalars.items():
            self._writer.add_scalar(name, value, point.step)
        for name, values in point.histograms.items():
            self._writer.add_histogram(name, values, point.step)
        self._writer.flush()
        self.position = point.step + 1

    def close(self, state: str) -> None:
        """Close the files; TensorBoard has no states."""
        self._writer.close()
