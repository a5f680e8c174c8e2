"""Checks of a configuration. Each message names the field, its value and a remedy."""

import math
import os
from pathlib import Path, PurePosixPath

from omegaconf import DictConfig, OmegaConf

from meanq.config.errors import ConfigError
from meanq.config.extensions import bootstrap_rule, env_factory
from meanq.config.schema import (
    Config,
    LoggerConfig,
)


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
