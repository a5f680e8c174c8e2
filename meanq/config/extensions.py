"""What a configuration names by import path: our own rules and environments, or a researcher's."""

import importlib
from typing import Any

from meanq.config.errors import ConfigError, closest
from meanq.config.schema import (
    AlgoConfig,
    EnvConfig,
)


def import_object(path: str, what: str) -> Any:
    """The object at a dotted import path, e.g. my_lab.rules.median."""
    module_name, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what}={path}: cannot import it ({error}); write module.name of something importable"
        ) from None


def bootstrap_rule(algo: AlgoConfig) -> Any:
    """The rule of targets.py with this name, or a researcher's own at an import path."""
    from meanq.learning.bootstrap import RULES, BootstrapRule

    if algo.bootstrap in RULES:
        return RULES[algo.bootstrap]
    if "." not in algo.bootstrap:
        raise ConfigError(
            f"algo.bootstrap={algo.bootstrap}: no such rule (one of your own is named by its import path, module.name)"
            f"{closest(algo.bootstrap, RULES)}"
        )
    rule = import_object(algo.bootstrap, "algo.bootstrap")
    return rule if isinstance(rule, BootstrapRule) else BootstrapRule(rule, rule)


def env_factory(env: EnvConfig) -> Any:
    """The class or function that makes this kind of environment."""
    from meanq.envs import KINDS

    if env.kind not in KINDS and "." not in env.kind:
        raise ConfigError(
            f"env.kind={env.kind}: no such kind (one of your own is named by its import path, module.name)"
            f"{closest(env.kind, KINDS)}"
        )
    return import_object(KINDS.get(env.kind, env.kind), "env.kind")
