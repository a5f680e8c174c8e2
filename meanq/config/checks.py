"""Checks of a configuration. Each message names the field, its value and a remedy.

Bounds of single fields come from the schema; what spans fields, files or the machine is checked here.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from meanq.config.errors import ConfigError
from meanq.config.extensions import import_bootstrap_rule, import_environment
from meanq.config.schema import Config, LoggerConfig
from meanq.config.setting import allowed_values, as_written, setting_of


def from_omegaconf(config: DictConfig) -> Config:
    """Resolve a composed configuration, check it, and return it as the typed object."""
    typed = OmegaConf.to_object(config)
    if not isinstance(typed, Config):
        remedy = "begin its `defaults` with `schema`, as conf/config.yaml does"
        raise ConfigError(f"--config-path, --config-name: this configuration does not build on meanq's; {remedy}")
    typed.compile = typed.compile.lower()  # YAML's true is the text "True"
    check(typed)
    return typed


def check(config: Config) -> None:
    """Raise ConfigError for a value or a combination that cannot work."""
    check_bounds(config)
    for works, name, remedy in _combinations(config):
        _require(works, name, attrgetter(name)(config), remedy)
    for name in ("study", "label", "env.name"):
        _check_directory_name(name, attrgetter(name)(config))
    check_logger(config.logger)
    import_environment(config.env.kind)
    _check_device(config.device)
    root = Path(config.root).absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    _require(writable, "root", config.root, f"cannot write in {existing}: write another directory")


def check_bounds(block: Any, prefix: str = "") -> None:
    """Check every field of a dataclass, and of the blocks in it, against the bounds that the schema declares."""
    for field in fields(block):
        name, value = prefix + field.name, getattr(block, field.name)
        is_list = isinstance(value, list)
        for item in value if is_list else [value]:
            if is_dataclass(item):
                check_bounds(item, f"{name}[]." if is_list else f"{name}.")
            else:
                _require(setting_of(field).allows(item), name, item, f"write {allowed_values(field) or 'a number'}")


def _combinations(config: Config) -> Iterator[tuple[bool, str, str]]:
    """Yield for each condition that spans fields: whether it holds, the field to change, the remedy."""
    algo, first = config.algo, config.algo.first_update
    yield algo.replay_capacity > algo.multi_step, "algo.replay_capacity", f"write {algo.multi_step + 1} or more"
    yield first >= algo.multi_step, "algo.first_update", f"write {algo.multi_step} or more"
    enough = f"the first update comes at interaction {first}: write {first} or more, or lower algo.first_update"
    yield config.total_steps >= first, "total_steps", enough
    shares = algo.prioritized and algo.priorities == "per_member" and algo.minibatch == "shared"
    one_priority = "members that share one minibatch share its priorities: write algo.priorities=shared"
    yield not shares, "algo.priorities", one_priority
    rule = import_bootstrap_rule(algo.bootstrap)  # a BootstrapRule, or a plain function
    members = getattr(rule, "min_members", 1)
    needed = f"algo.bootstrap={algo.bootstrap} needs at least {members} members"
    yield algo.ensemble_size >= members, "algo.ensemble_size", needed
    combine = "this rule cannot combine distributions: write algo.value=scalar, or give it a `combine`"
    yield algo.value == "scalar" or getattr(rule, "combine", None) is not None, "algo.bootstrap", combine
    yield algo.value_min < algo.value_max, "algo.value_max", f"write more than algo.value_min={algo.value_min}"
    same = "without a target network or noise the same weights choose and evaluate: write algo.double=false"
    yield not algo.double or algo.target_network is not None or algo.noisy, "algo.double", same
    cross_entropy = "distributions are learned by cross entropy: leave algo.loss out, or write algo.value=scalar"
    yield algo.value == "scalar" or algo.loss == "squared", "algo.loss", cross_entropy
    for name, off in (("algo.bias_noise", "fan_in"), ("algo.shared_noise", False), ("evaluation.noise", False)):
        remedy = f"no layer is noisy: write algo.noisy=true, or {name}={as_written(off)}"
        yield algo.noisy or attrgetter(name)(config) == off, name, remedy
    explore = "without noisy weights a greedy agent never explores: write algo.exploration=epsilon_greedy"
    yield algo.noisy or algo.exploration != "greedy", "algo.exploration", explore


def _check_directory_name(name: str, text: str | None) -> None:
    if text is None:
        return
    parts = PurePosixPath(text).parts
    plain = text == text.strip() and not text.startswith("/") and ".." not in parts and "\0" not in text
    _require(bool(parts) and plain, name, text, "it names a directory below the root: write a plain name")


def check_logger(logger: LoggerConfig) -> None:
    """Raise ConfigError for names that W&B would only refuse when the run is uploaded."""
    check_bounds(logger, "logger.")
    for name, text in (("logger.project", logger.project), ("logger.entity", logger.entity)):
        valid = text is None or (bool(text.strip()) and len(text) <= 128 and not set(text) & set("/\\#?%:"))
        _require(valid, name, text, "write a name of 1 to 128 characters, none of them / \\ # ? % :")


def _check_device(device: str) -> None:
    form = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", device)
    _require(form is not None, "device", device, "write auto, cpu, cuda or cuda:N")
    if form and device.startswith("cuda"):
        import torch

        count = torch.cuda.device_count()
        remedy = f"this machine has {count or 'no'} usable CUDA device(s), numbered from 0; write device=cpu"
        _require(int(form[1] or 0) < count, "device", device, remedy)


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={as_written(value)}: {remedy}")
