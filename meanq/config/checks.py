"""Checks of a configuration. Each message names the field, its value and a remedy.

Bounds of single fields come from the schema; what spans fields, files or the machine is checked here.
"""

import inspect
import math
import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from meanq.config.errors import ConfigError, closest, printable
from meanq.config.extensions import (
    CODE_FIELDS,
    LOGGERS,
    SCALAR_TARGETS,
    VALUE_FORMS,
    import_bootstrap_rule,
    import_code,
    import_environment,
    import_logger,
    loggers,
)
from meanq.config.fields import walk
from meanq.config.schema import Config, LoggerConfig
from meanq.config.setting import allowed_values, as_written, setting_of

_MAX_PATH, _MAX_NAME = 4095, 255  # bytes, on Linux
_LONGEST_FILE = ".frames-1000000000-1000000000.copy.12345678"


def from_omegaconf(config: DictConfig) -> Config:
    """Resolve a composed configuration, check it, and return it as the typed object."""
    check_names(config)
    typed = OmegaConf.to_object(config)
    if not isinstance(typed, Config):
        remedy = "begin its `defaults` with `schema`, as conf/config.yaml does"
        raise ConfigError(f"--config-path, --config-name: this configuration does not build on meanq's; {remedy}")
    typed.compile = typed.compile.lower()  # YAML's true is the text "True"
    check(typed)
    return typed


def check_names(config: DictConfig) -> None:
    """Raise ConfigError for a field that the schema does not declare: `+` on a command line, and files, can add one."""
    if OmegaConf.get_type(config) is Config:
        for name, value in _undeclared(config, Config):
            known = [declared for declared, _ in walk()]
            shown = "" if OmegaConf.is_config(value) else f"={as_written(value)}"
            raise ConfigError(f"{name}{shown}: there is no such field{closest(name, known)}")


def _undeclared(node: Any, block: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    declared = {field.name: field.type for field in fields(block)}
    for key, value in node.items_ex(resolve=False):
        if key not in declared:
            yield f"{prefix}{key}", value
        elif is_dataclass(declared[key]) and OmegaConf.is_dict(value):
            yield from _undeclared(value, declared[key], f"{prefix}{key}.")


def check(config: Config) -> None:
    """Raise ConfigError for a value or a combination that cannot work."""
    check_bounds(config)
    for name, known in CODE_FIELDS.items():
        if attrgetter(name)(config) not in known:
            import_code(name, attrgetter(name)(config))
    for works, name, remedy in _combinations(config):
        _require(works, name, attrgetter(name)(config), remedy)
    for name in ("study", "label", "env.name"):
        _check_directory_name(name, attrgetter(name)(config))
    _require(config.algo.name.isprintable(), "algo.name", config.algo.name, "write a plain name")
    check_logger(config.logger)
    import_environment(config.env.kind)
    _check_device(config.device)
    root = Path(config.root).absolute()
    _require(bool(config.root.strip()), "root", config.root, "write a directory, such as root=runs")
    _require("\0" not in config.root, "root", config.root, "write a plain name")
    names = (config.study, config.env.name, config.label or "", f"seed_{config.seed}", "checkpoint", _LONGEST_FILE)
    longest = root.joinpath(*names)
    too_long = len(os.fsencode(longest)) > _MAX_PATH or any(len(os.fsencode(p)) > _MAX_NAME for p in longest.parts)
    _require(not too_long, "root", config.root, "its runs would have longer names than files may have")
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
                large = "such a number is too large for a computer's arithmetic; write a smaller one"
                _require(not _overflows(item), name, item, large)
                _require(setting_of(field).allows(item), name, item, f"write {allowed_values(field) or 'a number'}")


def _overflows(value: object) -> bool:
    """Whether an integer needs more than 64 bits, or a real number is out of the range of single precision."""
    if isinstance(value, int):
        return abs(value) >= 2**63
    return isinstance(value, float) and math.isfinite(value) and abs(value) > 1e38


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
    numbers = algo.value not in VALUE_FORMS or algo.value in SCALAR_TARGETS
    yield numbers or getattr(rule, "combine", None) is not None, "algo.bootstrap", combine
    yield from _next_value(config, rule)
    yield from _resets(config)
    yield algo.value_min < algo.value_max, "algo.value_max", f"write more than algo.value_min={algo.value_min}"
    same = "without a target network or noise the same weights choose and evaluate: write algo.double=false"
    yield not algo.double or algo.target_network is not None or algo.noisy, "algo.double", same
    learned = "by quantile regression" if algo.value == "quantile" else "by cross entropy"
    no_loss = f"distributions are learned {learned}: leave algo.loss out, or write algo.value=scalar"
    distributions = algo.value in VALUE_FORMS and algo.value != "scalar"
    yield not distributions or algo.loss == "squared", "algo.loss", no_loss
    own_optimiser = "these are for an optimiser of torch.optim: write algo.optimiser=torch.optim.NAME"
    yield algo.optimiser != "adam" or not algo.optimiser_options, "algo.optimiser_options", own_optimiser
    network = config.network
    yield network.kind != "layers" or not network.options, "network.options", "these are for a network.kind of your own"
    if network.kind != "layers":
        layers = "the network is your own and has no such layers: write network=custom"
        yield not network.convolutions and not network.dense, "network.kind", layers
        nothing = {"algo.dueling": False, "algo.noisy": False, "algo.parallel_networks": 1, "algo.reset_every": None}
        for name, none in {**nothing, "network.layer_norm": "none"}.items():
            remedy = f"network.kind={network.kind} has layers of its own: write {name}={as_written(none)}"
            yield attrgetter(name)(config) == none, name, remedy
    for name, off in (("algo.bias_noise", "fan_in"), ("algo.shared_noise", False), ("evaluation.noise", False)):
        remedy = f"no layer is noisy: write algo.noisy=true, or {name}={as_written(off)}"
        yield algo.noisy or attrgetter(name)(config) == off, name, remedy
    explore = "without noisy weights a greedy agent never explores: write algo.exploration=epsilon_greedy"
    yield algo.noisy or algo.exploration != "greedy", "algo.exploration", explore


def _next_value(config: Config, rule: Any) -> Iterator[tuple[bool, str, str]]:
    """Conditions of the value of a next state, as `_combinations`."""
    algo, option = config.algo, getattr(rule, "option", None)
    if option is not None:
        needs = f"algo.bootstrap={algo.bootstrap} needs a number, e.g. algo.{option}=10"
        yield getattr(algo, option) is not None, f"algo.{option}", needs
    unused = "it belongs to algo.bootstrap=mellowmax: write that, or leave it out"
    yield algo.mellowmax_omega is None or option == "mellowmax_omega", "algo.mellowmax_omega", unused
    no_choice = f"algo.bootstrap={algo.bootstrap} averages over actions and chooses none: write algo.double=false"
    yield not algo.double or getattr(rule, "chooses", True), "algo.double", no_choice
    if algo.bootstrap_subset is not None:
        fewer = f"a subset has fewer than the algo.ensemble_size={algo.ensemble_size} members: write "
        fewer += f"{algo.ensemble_size - 1} or less" if algo.ensemble_size > 1 else "null"
        yield algo.bootstrap_subset < algo.ensemble_size, "algo.bootstrap_subset", fewer
        alike = f"algo.bootstrap={algo.bootstrap} needs members of its own: write algo.bootstrap=min, or null here"
        yield getattr(rule, "same_for_all", True), "algo.bootstrap_subset", alike
        weights = "confidence weights need all members: write algo.confidence_temperature=null"
        yield algo.confidence_temperature is None, "algo.confidence_temperature", weights


def _resets(config: Config) -> Iterator[tuple[bool, str, str]]:
    """Conditions of resets, as `_combinations`."""
    algo = config.algo
    never = "nothing is reset: write algo.reset_every=NUMBER, or leave algo.reset_layers out"
    yield algo.reset_every is not None or algo.reset_layers == "last", "algo.reset_layers", never
    if algo.reset_every is not None and algo.optimiser != "adam":
        code = import_code("algo.optimiser", algo.optimiser)
        forget = f"algo.optimiser={algo.optimiser} has no method `reset`, which forgets gradients: give it one"
        yield hasattr(code, "reset") or hasattr(code, "zero_grad"), "algo.reset_every", forget


def _check_directory_name(name: str, text: str | None) -> None:
    if text is None:
        return
    parts = PurePosixPath(text).parts
    plain = text == text.strip() and not text.startswith("/") and ".." not in parts and text.isprintable()
    _require(bool(parts) and plain, name, text, "it names a directory below the root: write a plain name")
    hidden = "directories that begin with a dot are not read: write another name"
    _require(not any(part.startswith(".") for part in parts), name, text, hidden)


def check_logger(logger: LoggerConfig) -> None:
    """Raise ConfigError for names that W&B would only refuse when the run is uploaded."""
    check_bounds(logger, "logger.")
    names = [logger.name] if isinstance(logger.name, str) else logger.name
    listed = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    _require(listed, "logger.name", logger.name, "write a name, or a list as in logger.name=[wandb,tensorboard]")
    _require(len(set(names)) == len(names), "logger.name", logger.name, "write each name once")
    for name in loggers(names):
        if name not in LOGGERS:
            check_sink(name, import_logger(name))
    for name, text in (("logger.project", logger.project), ("logger.entity", logger.entity)):
        valid = text is None or (bool(text.strip()) and len(text) <= 128 and not set(text) & set("/\\#?%:"))
        _require(valid, name, text, "write a name of 1 to 128 characters, none of them / \\ # ? % :")


def check_sink(name: str, sink: Any) -> None:
    """Raise ConfigError where a user's own logger lacks a method of meanq.mirrors.sink.Sink."""
    for method in ("log", "close", "enabled", "remedy"):
        wanted = f"it has no method {method}; derive it from meanq.mirrors.sink.Sink"
        own = callable(getattr(sink, method, None)) and getattr(sink, method).__module__ != "meanq.mirrors.sink"
        _require(
            own or (method in ("enabled", "remedy") and callable(getattr(sink, method, None))),
            "logger.name",
            name,
            wanted,
        )
    try:
        inspect.signature(sink).bind(None, None)
    except (TypeError, ValueError) as error:
        _require(False, "logger.name", name, f"it is made with (logger, directory), but {error}")


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
        raise ConfigError(f"{name}={printable(as_written(value))}: {remedy}")
