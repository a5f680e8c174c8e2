"""The TensorBoard logger."""

from pathlib import Path

from meanq.config.schema import LoggerConfig
from meanq.mirrors.sink import Point, Sink
from meanq.rundir.layout import TENSORBOARD_DIR


class TensorboardSink(Sink):
    """Event files in `tensorboard/`. They cannot be cut back, so they are always written anew from the first row."""

    def __init__(self, logger: LoggerConfig, directory: Path) -> None:
        from tensorboardX import SummaryWriter

        place = directory / TENSORBOARD_DIR
        if place.is_symlink():
            raise OSError(f"{place} is a link; replace it with the directory that it leads to")
        for path in place.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = SummaryWriter(str(place), write_to_disk=True)

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
