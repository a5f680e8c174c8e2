"""Names in a configuration that stand for code: our own by a short name, a user's own by an import path.

The tables hold import paths, so that a name imports only what it stands for.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from meanq.config.errors import ConfigError, closest

ENVIRONMENTS = {
    "atari": "meanq.envs.atari.Atari",
    "minatar": "meanq.envs.minatar.MinAtar",
    "chain": "meanq.envs.chain.Chain",
    "gymnasium": "meanq.envs.gym.Gymnasium",
}
BOOTSTRAP_RULES = {name: f"meanq.learning.bootstrap.{name.upper()}" for name in ("mean", "own", "min", "others")}
# A logger is a meanq.mirrors.sink.Sink; `files`, the run directory alone, needs none.
LOGGERS = {
    "wandb": "meanq.mirrors.wandb.WandbSink",
    "tensorboard": "meanq.mirrors.tensorboard.TensorboardSink",
}


def import_environment(kind: str) -> Any:
    """The class or function that makes environments of this kind."""
    return _resolve("env.kind", "kind", kind, ENVIRONMENTS)


def import_bootstrap_rule(name: str) -> Any:
    """A BootstrapRule, or a user's own function of the members' values."""
    return _resolve("algo.bootstrap", "rule", name, BOOTSTRAP_RULES)


def import_logger(name: str) -> Any:
    """The class that copies runs to this logger."""
    return _resolve("logger.name", "logger", name, LOGGERS)


def _resolve(field: str, noun: str, name: str, known: Mapping[str, str]) -> Any:
    if name not in known and "." not in name:
        raise ConfigError(
            f"{field}={name}: no such {noun} (one of your own is named by its import path, module.name)"
            f"{closest(name, known)}"
        )
    module, _, attribute = known.get(name, name).rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{field}={name}: cannot import it ({error}); write module.name of something importable"
        ) from None
