"""The interface of a logger: where the points of a run go."""

from pathlib import Path

from meanq.config.extensions import LOGGERS, import_logger
from meanq.config.schema import LoggerConfig
from meanq.mirrors.points import Point


class Sink:
    """Receives each point of a run once, in the order of steps. Lives in the mirror process."""

    position = 0  # the first step that is still missing

    def __init__(self, logger: LoggerConfig, directory: Path) -> None: ...

    def log(self, point: Point) -> None:
        """Add the point of a later step, and set `position`."""
        raise NotImplementedError

    def close(self, state: str) -> None:
        """Complete the copy; `state` is one of layout.ENDED_STATES."""
        raise NotImplementedError

    @classmethod
    def enabled(cls, logger: LoggerConfig) -> bool:
        """Whether there is anything to do."""
        return True

    @classmethod
    def remedy(cls, directory: Path) -> str:
        """Say how a copy that failed can be completed later."""
        return ""


def sink_class(logger: LoggerConfig) -> type[Sink] | None:
    """Look up a logger by its name; None where nothing is to be copied."""
    if logger.name not in LOGGERS:
        return None
    found: type[Sink] = import_logger(logger.name)
    return found if found.enabled(logger) else None
