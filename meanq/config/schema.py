"""The typed schema of conf/, and the checks that span fields. Each message names the field, its value and a remedy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

# A wheel carries conf/ inside the package, a checkout beside it.
_PACKAGE = Path(__file__).parents[1]
CONFIG_DIR = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"


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
