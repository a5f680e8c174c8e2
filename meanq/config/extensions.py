"""Names in a configuration that stand for code: our own by a short name, a user's own by an import path.

The tables hold import paths, so that a name imports only what it stands for.
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from meanq.config.errors import ConfigError, closest

ENVIRONMENTS = {
    "atari": "meanq.envs.atari.Atari",
    "minatar": "meanq.envs.minatar.MinAtar",
    "chain": "meanq.envs.chain.Chain",
    "garnet": "meanq.envs.garnet.Garnet",
    "gymnasium": "meanq.envs.gym.Gymnasium",
}
BOOTSTRAP_RULES = {
    name: f"meanq.learning.bootstrap.{name.upper()}" for name in ("mean", "own", "min", "others", "mellowmax")
}
VALUE_FORMS = {
    "scalar": "meanq.learning.values.ScalarValue",
    "hl_gauss": "meanq.learning.values.GaussianHistogramValue",
    "categorical": "meanq.learning.values.CategoricalValue",
    "quantile": "meanq.learning.values.QuantileValue",
}
SCALAR_TARGETS = ("scalar", "hl_gauss")  # forms whose target follows from the next state's Q, not its distribution
EXPLORATIONS = dict.fromkeys(
    ("epsilon_greedy", "episode_member", "ucb", "greedy"), "meanq.learning.exploration.Explorer"
)
# Fields whose code decides what a run is, with our own names for it. A logger only copies a run and is not among them.
CODE_FIELDS: dict[str, Mapping[str, str]] = {
    "env.kind": ENVIRONMENTS,
    "algo.bootstrap": BOOTSTRAP_RULES,
    "algo.value": VALUE_FORMS,
    "algo.exploration": EXPLORATIONS,
    "algo.optimiser": {"adam": "meanq.learning.optimiser.Adam"},
    "network.kind": {"layers": "meanq.learning.networks.QNetwork"},
}
# Modules whose versions meta.json holds, so their sources are not hashed.
_VERSIONED = ("meanq", "torch")
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


def import_code(field: str, name: str) -> Any:
    """What a field of CODE_FIELDS names."""
    return _resolve(field, field.rpartition(".")[2], name, CODE_FIELDS[field])


def loggers(name: str | list[str]) -> list[str]:
    """Names of the loggers besides the run directory itself; `logger.name` is one name or a list."""
    return [one for one in ([name] if isinstance(name, str) else name) if one != "files"]


def own_code(config: Any) -> dict[str, str]:
    """Fields of a configuration that name a user's own code, with their import paths."""
    named = {field: attrgetter(field)(config) for field in CODE_FIELDS}
    return {field: path for field, path in named.items() if path not in CODE_FIELDS[field]}


def sources(config: Any) -> dict[str, str]:
    """SHA-256 of the source files behind a user's own code, by field."""
    found = {}
    for field, path in own_code(config).items():
        if digest := _source_hash(path, import_code(field, path)):
            found[field] = digest
    return found


_hashed: dict[int, tuple[Any, str]] = {}  # by the identity of the code, which the entry keeps alive


def _source_hash(path: str, code: Any) -> str:
    """Hash the module that a path names and the one that defines the code; empty where neither is a file.

    The first answer is kept: a file that is edited later is not the code that this process has imported.
    """
    if id(code) not in _hashed:
        names = {path.rpartition(".")[0], code.__module__ if hasattr(code, "__qualname__") else ""} - {"", None}
        digest = hashlib.sha256()
        files = {getattr(sys.modules.get(name), "__file__", None) for name in names if not _is_versioned(name)}
        for file in sorted(file for file in files if file):
            digest.update(Path(file).read_bytes())
        _hashed[id(code)] = code, digest.hexdigest() if files - {None} else ""
    return _hashed[id(code)][1]


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _resolve(field: str, noun: str, name: str, known: Mapping[str, str]) -> Any:
    if name not in known and not re.fullmatch(r"\w+(\.\w+)+", name):
        raise ConfigError(
            f"{field}={name}: no such {noun} (one of your own is named by its import path, module.name)"
            f"{closest(name, known)}"
        )
    module, _, attribute = known.get(name, name).rpartition(".")
    here = str(Path.cwd())
    if name not in known and not {"", here} & set(sys.path):
        sys.path.append(here)  # so that the command `meanq` finds modules of the current directory, as python -m does
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:  # the last: of a name too long for a file
        raise ConfigError(
            f"{field}={name}: cannot import it ({error}); write module.name of something importable"
        ) from None
