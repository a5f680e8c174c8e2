"""The typed schema of conf/, and the checks that span fields. Each message names the field, its value and a remedy."""

import difflib
import importlib
import inspect
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

# A wheel carries conf/ inside the package, a checkout beside it.
_PACKAGE = Path(__file__).parent
CONFIG_DIR = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"


class ConfigError(ValueError):
    """A user's mistake: one line that says which field, which value, and what to write instead."""


@dataclass
class ConvolutionConfig:
    """One convolution, followed by a rectifier."""

    channels: int = MISSING
    kernel: int = MISSING
    stride: int = MISSING


@dataclass
class NetworkConfig:
    """Layers of one member."""

    name: str = MISSING
    convolutions: list[ConvolutionConfig] = field(default_factory=list)
    dense: list[int] = field(default_factory=list)
    hidden: int = MISSING
    shared_hidden: bool = False
    padding: str = "valid"
    initial_weights: str = "uniform"


@dataclass
class HyperparametersConfig:
    """Values that depend on the environment. A family of algorithms reads its own block."""

    total_steps: int = MISSING
    learning_rate: float = MISSING
    adam_epsilon: float = MISSING
    max_gradient_norm: float | None = 10.0
    multi_step: int = 1
    interactions_per_update: int = MISSING
    first_update: int = MISSING
    random_steps: int = 0
    replay_capacity: int = MISSING
    importance_steps: int | None = None
    ensemble_std: str = "population"
    target_period: int = MISSING
    epsilon_begin: int = 0
    epsilon_steps: int = MISSING
    epsilon_with_noise: bool = MISSING
    value_min: float = MISSING
    value_max: float = MISSING


@dataclass
class EnvConfig:
    """An environment: what it is, how its scores are normalised, and what the paper sets for it."""

    name: str = MISSING
    kind: str = MISSING
    id: str = MISSING
    stack: int = MISSING
    stack_over_lives: bool = False
    clip_rewards: bool = MISSING
    options: dict[str, Any] = field(default_factory=dict)
    random_score: float | None = None
    random_score_500k: float | None = None
    reference_score: float | None = None
    reference: str | None = None
    evaluate_every: int = MISSING
    probe_every: int = MISSING
    vanilla: HyperparametersConfig = field(default_factory=HyperparametersConfig)
    main: HyperparametersConfig = field(default_factory=HyperparametersConfig)
    sunrise: HyperparametersConfig = field(default_factory=HyperparametersConfig)
    canonical: HyperparametersConfig = field(default_factory=HyperparametersConfig)
    dopamine: HyperparametersConfig = field(default_factory=HyperparametersConfig)


@dataclass
class EpsilonConfig:
    """Linear from start to end over `steps` interactions, which begin at `begin`.

    `with_noise`: also where noise or UCB explore. `evaluation`: the probability of a random action in evaluation.
    """

    start: float = MISSING
    end: float = MISSING
    steps: int = MISSING
    begin: int = 0
    with_noise: bool = False
    evaluation: float = 0.0


@dataclass
class AlgoConfig:
    """A point in the space of methods."""

    name: str = MISSING
    family: str = MISSING
    ensemble_size: int = MISSING
    bootstrap: str = MISSING
    double: bool = MISSING
    target_network: int | None = None
    target_snapshots: int = MISSING
    minibatch: str = MISSING
    mask_probability: float = MISSING
    confidence_temperature: float | None = None
    prioritized: bool = MISSING
    priorities: str = MISSING
    priority_exponent: float = MISSING
    importance_start: float = MISSING
    importance_end: float = MISSING
    importance_steps: int | None = None
    value: str = MISSING
    loss: str = "squared"
    atoms: int = MISSING
    value_min: float = MISSING
    value_max: float = MISSING
    dueling: bool = MISSING
    noisy: bool = MISSING
    noise: float = MISSING
    bias_noise: str = "fan_in"
    shared_noise: bool = False
    parallel_networks: int = MISSING
    exploration: str = MISSING
    ucb_lambda: float = MISSING
    ensemble_std: str = MISSING
    epsilon: EpsilonConfig = field(default_factory=EpsilonConfig)
    discount: float = MISSING
    multi_step: int = MISSING
    batch_size: int = MISSING
    replay_capacity: int = MISSING
    first_update: int = MISSING
    random_steps: int = 0
    interactions_per_update: int = MISSING
    gradient_steps: int = MISSING
    learning_rate: float = MISSING
    adam_epsilon: float = MISSING
    max_gradient_norm: float | None = MISSING
    random_shift: int = MISSING
    random_intensity: float = 0.0


@dataclass
class EvaluationConfig:
    """Greedy episodes, all at once; `noise`: with one draw of noise per evaluation left in noisy layers."""

    episodes: int = MISSING
    every: int = MISSING
    noise: bool = False


@dataclass
class ProbeConfig:
    """Values of every member at the same initial states in every run."""

    states: int = MISSING
    every: int = MISSING
    seed: int = MISSING


@dataclass
class CheckpointConfig:
    """What survives a kill, see checkpoint.py."""

    every: int = MISSING
    keep: bool = MISSING


@dataclass
class LoggerConfig:
    """Where a run is mirrored to, besides its directory. All but the name and the time to finish are W&B's."""

    name: str = MISSING
    project: str = "meanq"
    entity: str | None = None
    mode: str = "auto"
    tags: list[str] = field(default_factory=list)
    weights: bool = False
    finish_seconds: float = 30.0


@dataclass
class Config:
    """One run."""

    seed: int = MISSING
    total_steps: int = MISSING
    study: str = MISSING
    label: str | None = None
    root: str = MISSING
    device: str = MISSING
    threads: int | None = None
    compile: str = "auto"
    cache_targets: bool = True
    replay_on_device: bool = False
    log_every: int = MISSING
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


# In conf/: ${if:condition,then,otherwise}, for a default that follows another field.
OmegaConf.register_new_resolver("if", lambda condition, then, otherwise: then if condition else otherwise, replace=True)


def from_omegaconf(config: DictConfig) -> Config:
    """The plain typed object of a composed configuration, every interpolation resolved, checked."""
    typed = OmegaConf.to_object(config)
    if not isinstance(typed, Config):
        raise ConfigError(
            "--config-path, --config-name: this configuration does not build on meanq's; begin its `defaults` with "
            "`schema`, as conf/config.yaml does, or, for the recorded one of a run, take the command that "
            "`python -m analysis.report RUN` shows"
        )
    typed.compile = typed.compile.lower()  # YAML's true is the text "True"
    check(typed)
    return typed


ABSENT = "absent"


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Fields by dotted name."""
    if isinstance(node, Mapping) and node:
        flat: dict[str, Any] = {}
        for key, value in node.items():
            flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: node}


def field_value(flat: Mapping[str, Any], name: str) -> Any:
    """A field of a stored configuration, flattened. One that did not exist when it was stored has its declared default.

    ABSENT where none is declared.
    """
    if name in flat:
        return flat[name]
    if name.startswith("env.options."):
        return _declared_options(str(flat.get("env.kind"))).get(name.removeprefix("env.options."), ABSENT)
    return _declared_defaults().get(name, ABSENT)


@cache
def _declared_defaults() -> dict[str, Any]:
    return {name: value for name, value in flatten(asdict(Config())).items() if value != MISSING}


@cache
def _declared_options(kind: str) -> dict[str, Any]:
    """The defaults of the options that environments of one of our own kinds take."""
    from meanq.envs import KINDS

    if kind not in KINDS:  # to look at somebody's own would be to run it
        return {}
    options = inspect.signature(import_object(KINDS[kind], "env.kind")).parameters.values()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}


_LONGEST_LIST = 60  # there are half as many environments, and twice as many fields


def closest(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?', or the whole list where it is short, or nothing."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; choose from {', '.join(known)}" if 0 < len(known) <= _LONGEST_LIST else ""


def import_object(path: str, what: str) -> Any:
    """The object at a dotted import path, e.g. my_lab.rules.median."""
    module_name, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what}={path}: cannot import it ({error}); write module.name of something importable"
        ) from None


_LONGEST_FILE_NAME = 255  # of the usual file systems
MINIBATCHES = ("independent", "shared")
PRIORITIES = ("per_member", "shared")
VALUES = ("scalar", "categorical")
LOSSES = ("squared", "huber")
PADDINGS = ("valid", "same")
INITIAL_WEIGHTS = ("uniform", "xavier")
BIAS_NOISES = ("fan_in", "fan_out")
EXPLORATIONS = ("epsilon_greedy", "episode_member", "ucb", "greedy")
ENSEMBLE_STDS = ("population", "sample")
DEVICES = ("auto", "cpu", "cuda")
COMPILES = ("auto", "true", "false")
LOGGERS = ("files", "wandb", "tensorboard")
WANDB_MODES = ("auto", "online", "offline", "disabled")


def check(config: Config) -> None:
    """Raise ConfigError for a value or a combination that cannot work."""
    algo = config.algo
    for name, value, least in (
        ("seed", config.seed, 0),
        ("total_steps", config.total_steps, 1),
        ("log_every", config.log_every, 1),
        ("evaluation.episodes", config.evaluation.episodes, 1),
        ("evaluation.every", config.evaluation.every, 1),
        ("probe.states", config.probe.states, 1),
        ("probe.every", config.probe.every, 1),
        ("probe.seed", config.probe.seed, 0),
        ("checkpoint.every", config.checkpoint.every, 1),
        ("env.stack", config.env.stack, 1),
        ("network.hidden", config.network.hidden, 1),
        ("algo.ensemble_size", algo.ensemble_size, 1),
        ("algo.target_snapshots", algo.target_snapshots, 1),
        ("algo.multi_step", algo.multi_step, 1),
        ("algo.batch_size", algo.batch_size, 1),
        ("algo.replay_capacity", algo.replay_capacity, algo.multi_step + 1),
        ("algo.first_update", algo.first_update, algo.multi_step),
        ("algo.interactions_per_update", algo.interactions_per_update, 1),
        ("algo.gradient_steps", algo.gradient_steps, 1),
        ("algo.epsilon.steps", algo.epsilon.steps, 1),
        ("algo.atoms", algo.atoms, 2),
        ("algo.parallel_networks", algo.parallel_networks, 1),
        ("algo.random_shift", algo.random_shift, 0),
        ("algo.random_steps", algo.random_steps, 0),
        ("algo.epsilon.begin", algo.epsilon.begin, 0),
        ("threads", 1 if config.threads is None else config.threads, 1),
    ):
        _require(value >= least, name, value, f"write {least} or more")
    for name, fraction in (
        ("algo.discount", algo.discount),
        ("algo.epsilon.start", algo.epsilon.start),
        ("algo.epsilon.end", algo.epsilon.end),
        ("algo.epsilon.evaluation", algo.epsilon.evaluation),
        ("algo.importance_start", algo.importance_start),
        ("algo.importance_end", algo.importance_end),
        ("algo.priority_exponent", algo.priority_exponent),
        ("algo.mask_probability", algo.mask_probability),
    ):
        _require(0 <= fraction <= 1, name, fraction, "write a number from 0 to 1")
    for name, positive in (
        ("algo.learning_rate", algo.learning_rate),
        ("algo.adam_epsilon", algo.adam_epsilon),
        ("algo.noise", algo.noise),
        ("algo.mask_probability", algo.mask_probability),
    ):
        _require(0 < positive < math.inf, name, positive, "write a number above 0")
    _require(0 <= algo.ucb_lambda < math.inf, "algo.ucb_lambda", algo.ucb_lambda, "write 0 or more")
    # The standard normal draw is cut off at 2, so an image is never multiplied by less than 0.
    intensity = algo.random_intensity
    _require(0 <= intensity <= 0.5, "algo.random_intensity", intensity, "write a number from 0 (off) to 0.5")
    for name, optional in (
        ("algo.confidence_temperature", algo.confidence_temperature),
        ("algo.max_gradient_norm", algo.max_gradient_norm),
    ):
        if optional is not None:
            _require(0 < optional < math.inf, name, optional, "write a number above 0, or null")
    for name, bound in (("algo.value_min", algo.value_min), ("algo.value_max", algo.value_max)):
        _require(math.isfinite(bound), name, bound, "write a number")
    for name, chosen, choices in (
        ("algo.minibatch", algo.minibatch, MINIBATCHES),
        ("algo.priorities", algo.priorities, PRIORITIES),
        ("algo.value", algo.value, VALUES),
        ("algo.loss", algo.loss, LOSSES),
        ("algo.bias_noise", algo.bias_noise, BIAS_NOISES),
        ("network.padding", config.network.padding, PADDINGS),
        ("network.initial_weights", config.network.initial_weights, INITIAL_WEIGHTS),
        ("algo.exploration", algo.exploration, EXPLORATIONS),
        ("algo.ensemble_std", algo.ensemble_std, ENSEMBLE_STDS),
        ("compile", config.compile, COMPILES),
    ):
        _require(chosen in choices, name, chosen, f"write {' or '.join(choices)}")
    if algo.target_network is not None:
        _require(algo.target_network >= 1, "algo.target_network", algo.target_network, "write 1 or more, or null")
    for conv in config.network.convolutions:
        for name, value in (("channels", conv.channels), ("kernel", conv.kernel), ("stride", conv.stride)):
            _require(value >= 1, f"network.convolutions[].{name}", value, "write 1 or more")
    for width in config.network.dense:
        _require(width >= 1, "network.dense", width, "write layer widths of 1 or more")
    _check_combinations(config)


def _check_combinations(config: Config) -> None:
    algo = config.algo
    _require(
        config.total_steps >= algo.first_update,
        "total_steps",
        config.total_steps,
        f"the first update comes at interaction {algo.first_update}: write {algo.first_update} or more, "
        "or lower algo.first_update",
    )
    _require(
        algo.random_steps <= config.total_steps,
        "algo.random_steps",
        algo.random_steps,
        f"the run has {config.total_steps} interactions: write that or less",
    )
    if algo.importance_steps is not None:
        _require(
            algo.importance_steps >= algo.first_update,
            "algo.importance_steps",
            algo.importance_steps,
            f"the first update comes at interaction {algo.first_update}: write {algo.first_update} or more, "
            "or null for the length of the run",
        )
    _require(
        not (algo.prioritized and algo.priorities == "per_member" and algo.minibatch == "shared"),
        "algo.priorities",
        algo.priorities,
        "members that share one minibatch share its priorities: write algo.priorities=shared, "
        "or algo.minibatch=independent",
    )
    rule = bootstrap_rule(algo)
    _require(
        algo.ensemble_size >= rule.min_members,
        "algo.ensemble_size",
        algo.ensemble_size,
        f"algo.bootstrap={algo.bootstrap} needs at least {rule.min_members} members",
    )
    _require(
        algo.value == "scalar" or rule.combine is not None,
        "algo.bootstrap",
        algo.bootstrap,
        "this rule says nothing of distributions: write algo.value=scalar, or make it a BootstrapRule with `combine`",
    )
    _require(
        algo.value_min < algo.value_max,
        "algo.value_max",
        algo.value_max,
        f"write more than algo.value_min={algo.value_min}",
    )
    _require(
        algo.double is False or algo.target_network is not None or algo.noisy,
        "algo.double",
        algo.double,
        "without a target network or noise the same weights choose and evaluate: write algo.double=false, "
        "or give algo.target_network a period",
    )
    _require(
        algo.value == "scalar" or algo.loss == "squared",
        "algo.loss",
        algo.loss,
        "distributions are learned by cross entropy: leave algo.loss out, or write algo.value=scalar",
    )
    for name, chosen, off in (
        ("algo.bias_noise", algo.bias_noise, "fan_in"),
        ("algo.shared_noise", algo.shared_noise, False),
        ("evaluation.noise", config.evaluation.noise, False),
    ):
        _require(
            algo.noisy or chosen == off,
            name,
            str(chosen).lower(),
            f"no layer is noisy: write algo.noisy=true, or {name}={str(off).lower()}",
        )
    _require(
        algo.epsilon.begin < config.total_steps,
        "algo.epsilon.begin",
        algo.epsilon.begin,
        f"the run has {config.total_steps} interactions: write less than that",
    )
    _require(
        algo.noisy or algo.exploration != "greedy",
        "algo.exploration",
        algo.exploration,
        "without noisy weights a greedy agent never explores: write algo.exploration=epsilon_greedy",
    )
    for name, text in (("study", config.study), ("label", config.label or "label"), ("env.name", config.env.name)):
        parts = PurePosixPath(text).parts
        _require(
            bool(parts)
            and text == text.strip()
            and not text.startswith("/")
            and ".." not in parts
            and "\0" not in text,
            name,
            text,
            "it names a directory below the root: write a plain name",
        )
        _require(
            all(len(part.encode()) <= _LONGEST_FILE_NAME for part in parts),
            name,
            f"{text[:20]}...",
            f"it names a directory: write a name of at most {_LONGEST_FILE_NAME} bytes",
        )
    check_logger(config.logger)
    env_factory(config.env)
    _check_device(config.device)
    check_root(config.root)


def check_logger(logger: LoggerConfig) -> None:
    """Raise for what W&B would refuse after hours."""
    _require(logger.name in LOGGERS, "logger.name", logger.name, f"write {' or '.join(LOGGERS)}")
    _require(logger.mode in WANDB_MODES, "logger.mode", logger.mode, f"write {' or '.join(WANDB_MODES)}")
    for name, text in (("logger.project", logger.project), ("logger.entity", logger.entity or "entity")):
        _require(
            bool(text.strip()) and len(text) <= 128 and not set(text) & set("/\\#?%:"),
            name,
            text,
            "write a name of 1 to 128 characters, none of them / \\ # ? % :",
        )
    for tag in logger.tags:
        _require(0 < len(tag.strip()) <= len(tag) <= 64, "logger.tags", tag, "write tags of 1 to 64 characters")
    _require(
        0 < logger.finish_seconds < math.inf,
        "logger.finish_seconds",
        logger.finish_seconds,
        "write seconds, more than 0",
    )


def _check_device(device: str) -> None:
    base = device.split(":")[0]
    _require(base in DEVICES, "device", device, "write auto, cpu, cuda or cuda:N")
    if base == "cuda":
        import torch

        _require(torch.cuda.is_available(), "device", device, "this machine has no usable CUDA: write device=cpu")
        index = device.partition(":")[2]
        _require(
            not index or (index.isdigit() and int(index) < torch.cuda.device_count()),
            "device",
            device,
            f"there are {torch.cuda.device_count()} CUDA devices, numbered from 0",
        )


def check_root(root: str) -> None:
    """Raise where a directory could not be made below `root`; makes nothing."""
    path = Path(root).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    _require(path.is_dir(), "root", root, f"{path} is not a directory: write one that can be written to")
    _require(
        os.access(path, os.W_OK | os.X_OK) and not _read_only(path),
        "root",
        root,
        f"no permission to write in {path}: write another directory",
    )


def _read_only(path: Path) -> bool:
    """Also where permissions do not apply (root): a read-only or virtual file system."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return True
    return bool(stats.f_flag & os.ST_RDONLY) or stats.f_blocks == 0


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={value}: {remedy}")


def bootstrap_rule(algo: AlgoConfig) -> Any:
    """The rule of targets.py with this name, or a researcher's own at an import path."""
    from meanq.targets import RULES, BootstrapRule

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
