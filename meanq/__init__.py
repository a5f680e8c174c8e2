"""Ensemble deep Q-learning experiments: train MeanQ and its baselines, and measure the error of their values.

In Python: meanq.load(run_directory), meanq.runs(path) and meanq.train([...overrides]); see meanq.api. Importing meanq
imports nothing heavy; each of these imports what it needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meanq.api import Agent, ConfigError, Run, RunError, Runs, load, runs, train

__version__ = "0.1.0"
__all__ = ["Agent", "ConfigError", "Run", "RunError", "Runs", "load", "runs", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from meanq import api

        return getattr(api, name)
    raise AttributeError(f"module 'meanq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
