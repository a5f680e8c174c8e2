"""The typed schema of conf/: every field with its type, meaning, bounds and role.

A new field takes one line here: --help, docs/fields.md, the checks and the identity of runs follow from it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from meanq.config.errors import ConfigError
from meanq.config.setting import setting

# A wheel carries conf/ inside the package, a checkout beside it.
_PACKAGE = Path(__file__).parents[1]
CONFIG_DIR = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"

WANDB_MODES = ("auto", "online", "offline", "disabled")
_COMPILE = ("auto", "true", "false")
_RESETS = ("last", "all")
_OF_MACHINE = {"label": False, "compared": False}
_NOT_IN_LABEL = {"label": False}  # of what only measures a run: schedules, states of probes, scores to compare with


@dataclass
class ConvolutionConfig:
    """One convolution, followed by a rectifier."""

    channels: int = setting("channels of its output", least=1)
    kernel: int = setting("height and width of its kernel", least=1)
    stride: int = setting("stride in both directions", least=1)


@dataclass
class NetworkConfig:
    """Layers of one member."""

    name: str = setting("name of the network")
    kind: str = setting("layers: those of this block; or your own's import path", "layers")
    options: dict[str, Any] = setting("keyword arguments of your own; add one with +network.options.NAME=VALUE", dict)
    convolutions: list[ConvolutionConfig] = setting("convolutions of images, in order", list)
    dense: list[int] = setting("widths of dense layers after these", list, least=1)
    hidden: int = setting("units of each stream's hidden layer", least=1)
    shared_hidden: bool = setting("one hidden layer for both dueling streams", False)
    padding: str = setting("padding of the convolutions", "valid", choices=("valid", "same"))
    initial_weights: str = setting("initial weights", "uniform", choices=("uniform", "xavier"))
    layer_norm: str = setting(
        "layer normalisation before each rectifier", "none", choices=("none", "features", "channels")
    )


@dataclass
class HyperparametersConfig:
    """Values that depend on the environment. The fields of `algo` refer to the block of their family."""

    total_steps: int = setting("value of total_steps")
    learning_rate: float = setting("value of algo.learning_rate")
    adam_epsilon: float = setting("value of algo.adam_epsilon")
    max_gradient_norm: float | None = setting("value of algo.max_gradient_norm", 10.0)
    multi_step: int = setting("value of algo.multi_step", 1)
    interactions_per_update: int = setting("value of algo.interactions_per_update")
    first_update: int = setting("value of algo.first_update")
    random_steps: int = setting("value of algo.random_steps", 0)
    replay_capacity: int = setting("value of algo.replay_capacity")
    importance_steps: int | None = setting("value of algo.importance_steps", None)
    ensemble_std: str = setting("value of algo.ensemble_std", "population")
    target_period: int = setting("value of algo.target_network")
    epsilon_begin: int = setting("value of algo.epsilon.begin", 0)
    epsilon_steps: int = setting("value of algo.epsilon.steps")
    epsilon_with_noise: bool = setting("value of algo.epsilon.with_noise")
    value_min: float = setting("value of algo.value_min")
    value_max: float = setting("value of algo.value_max")


def _family(name: str) -> Any:
    return setting(f"values where algo.family={name}", HyperparametersConfig, identity=False)


@dataclass
class EnvConfig:
    """An environment: what it is, how its scores are normalised, and what the paper sets for it."""

    name: str = setting("name of the environment in paths and figures")
    kind: str = setting("atari, minatar, chain, garnet, gymnasium, or the import path of your own")
    id: str = setting("which environment of its kind", label=False)
    stack: int = setting("frames that form a state", least=1)
    stack_over_lives: bool = setting("keep the frame stack after a lost life", False)
    clip_rewards: bool = setting("clip rewards to [-1, 1] for learning")
    options: dict[str, Any] = setting("its keyword arguments; add one with +env.options.NAME=VALUE", dict)
    random_score: float | None = setting("return of random play, to normalise scores", None, **_NOT_IN_LABEL)
    random_score_500k: float | None = setting(
        "the same in the paper's table of 500K interactions", None, **_NOT_IN_LABEL
    )
    reference_score: float | None = setting("return that is normalised to 1", None, **_NOT_IN_LABEL)
    reference: str | None = setting("source of the reference score", None, compared=False, **_NOT_IN_LABEL)
    evaluate_every: int = setting("value of evaluation.every", compared=False, **_NOT_IN_LABEL)
    probe_every: int = setting("value of probe.every", compared=False, **_NOT_IN_LABEL)
    probe_states: int = setting("value of probe.states", 50, compared=False, **_NOT_IN_LABEL)
    vanilla: HyperparametersConfig = _family("vanilla")
    main: HyperparametersConfig = _family("main")
    sunrise: HyperparametersConfig = _family("sunrise")
    canonical: HyperparametersConfig = _family("canonical")
    dopamine: HyperparametersConfig = _family("dopamine")


@dataclass
class EpsilonConfig:
    """Probability of a random action: linear from `start` to `end`."""

    start: float = setting("epsilon at first", least=0, most=1)
    end: float = setting("epsilon at last", least=0, most=1)
    steps: int = setting("interactions from start to end", least=1)
    begin: int = setting("interactions before it falls", 0, least=0)
    with_noise: bool = setting("also with exploration=ucb or greedy", False)
    evaluation: float = setting("epsilon in evaluation", 0.0, least=0, most=1)


@dataclass
class AlgoConfig:
    """A point in the space of methods."""

    name: str = setting("name of the algorithm")
    family: str = setting("which env.FAMILY block of values applies", identity=False)
    ensemble_size: int = setting("members K of the ensemble", least=1)
    bootstrap: str = setting("rule for the next value: mean, min, own, others, mellowmax, or your own's import path")
    # Below 0.01 rounding of single precision exceeds 1e-5; above 1e6 mellowmax is the maximum.
    mellowmax_omega: float | None = setting(
        "omega of bootstrap=mellowmax; large: close to the maximum", None, least=0.01, most=1_000_000
    )
    bootstrap_subset: int | None = setting("members drawn at each update for the rule; null: all", None, least=1)
    double: bool = setting("Double DQN: online weights choose actions")
    target_network: int | None = setting("interactions between copies; null: no target network", None, least=1)
    target_snapshots: int = setting("past copies that are averaged", least=1)
    minibatch: str = setting("one per member, or one for all", choices=("independent", "shared"))
    mask_probability: float = setting("probability that a member sees a transition", least=0.001, most=1)
    confidence_temperature: float | None = setting("T of SUNRISE's weights; null: equal weights", None, above=0)
    prioritized: bool = setting("sample by priority; false: uniformly")
    priorities: str = setting("one per member, or their mean", choices=("per_member", "shared"))
    priority_exponent: float = setting("exponent of priorities", least=0, most=1)
    importance_start: float = setting("importance exponent at first", least=0, most=1)
    importance_end: float = setting("importance exponent at last", least=0, most=1)
    importance_steps: int | None = setting("interactions in between; null: whole run", None)
    value: str = setting("value form: scalar, hl_gauss, categorical, quantile, or your own's import path")
    loss: str = setting("loss of scalar values", "squared", choices=("squared", "huber"))
    atoms: int = setting("atoms of a categorical value, bins of hl_gauss", least=2)
    quantiles: int = setting("quantiles of a quantile value", 200, least=1)
    value_min: float = setting("lowest atom; lower edge of the lowest bin")
    value_max: float = setting("highest atom; upper edge of the highest bin")
    dueling: bool = setting("dueling streams of value and advantage")
    noisy: bool = setting("dense layers with Gaussian noise")
    noise: float = setting("initial scale sigma_0 of noise", above=0, most=100)
    bias_noise: str = setting("what divides the noise of biases", "fan_in", choices=("fan_in", "fan_out"))
    shared_noise: bool = setting("one draw of noise for acting and learning", False)
    parallel_networks: int = setting("networks averaged in a member", least=1)
    exploration: str = setting("epsilon_greedy, episode_member, ucb, greedy, or your own's import path")
    ucb_lambda: float = setting("weight of the std in UCB", least=0)
    ensemble_std: str = setting("std over members", choices=("population", "sample"))
    epsilon: EpsilonConfig = setting("random actions in training and evaluation", EpsilonConfig)
    discount: float = setting("discount gamma", least=0, most=1)
    multi_step: int = setting("steps M of a return", least=1)
    batch_size: int = setting("transitions per member", least=1)
    replay_capacity: int = setting("transitions that replay holds", least=2)
    first_update: int = setting("interaction of the first update", least=1)
    random_steps: int = setting("random actions at the start", 0, least=0)
    interactions_per_update: int = setting("interactions between updates", least=1)
    gradient_steps: int = setting("gradient steps per update", least=1)
    learning_rate: float = setting("learning rate of Adam", above=0)
    adam_epsilon: float = setting("epsilon of Adam", above=0)
    optimiser: str = setting("adam, or your own's import path, e.g. torch.optim.RMSprop", "adam")
    optimiser_options: dict[str, Any] = setting("its keyword arguments, where it is one of torch.optim", dict)
    max_gradient_norm: float | None = setting("limit for each member; null: none", above=0)
    reset_every: int | None = setting("gradient steps between resets of layers; null: never", None, least=1)
    reset_layers: str = setting("which: last (hidden and output), or all (others partly)", "last", choices=_RESETS)
    random_shift: int = setting("largest shift of images, pixels", least=0)
    # At most 0.5: the normal draw is cut off at 2, so images are never multiplied by less than 0.
    random_intensity: float = setting("random brightness of images", 0.0, least=0, most=0.5)


@dataclass
class EvaluationConfig:
    """Greedy episodes, all at once."""

    episodes: int = setting("episodes per evaluation", least=1, **_NOT_IN_LABEL)
    every: int = setting("interactions between evaluations", least=1, **_NOT_IN_LABEL)
    noise: bool = setting("keep one draw of noise per evaluation in noisy layers", False)


@dataclass
class ProbeConfig:
    """Values of every member at the same initial states in every run."""

    states: int = setting("initial states at which values are recorded; 0: all states of a finite MDP", least=0)
    every: int = setting("interactions between probes", least=1)
    seed: int = setting("seed of these states, the same for all runs", least=0)


@dataclass
class CheckpointConfig:
    """What survives a kill."""

    every: int = setting("interactions between checkpoints", least=1)
    keep: bool = setting("keep the checkpoint of a finished run")


@dataclass
class LoggerConfig:
    """A mirror of the run besides its directory. All but `name` and `finish_seconds` concern W&B."""

    name: Any = setting("files, wandb, tensorboard, your own's import path, or a list of these")
    project: str = setting("W&B project", "meanq")
    entity: str | None = setting("W&B user or team; null: your default", None)
    mode: str = setting("auto: online if there is a key, else offline", "auto", choices=WANDB_MODES)
    tags: list[str] = setting("W&B tags besides algorithm and environment", list)
    weights: bool = setting("upload the final weights as an artifact", False)
    finish_seconds: float = setting("seconds to wait for the mirror at the end", 30.0, above=0)


@dataclass
class Config:
    """One run."""

    seed: int = setting("seed of all randomness; 0-4 with -m: five runs", least=0, label=False, compared=False)
    total_steps: int = setting("interactions with the environment", least=1)
    study: str = setting("directory of the run below the root", label=False, compared=False, content=False)
    label: str | None = setting(
        "name of the run; null: algorithm and overrides that change learning", None, label=False, content=False
    )
    root: str = setting("directory of all runs", identity=False, label=False)
    device: str = setting("where to train: auto, cpu, cuda or cuda:N", **_OF_MACHINE)
    threads: int | None = setting("CPU threads; null: all cores", None, least=1, most=1024, **_OF_MACHINE)
    compile: str = setting("compile the learner; auto: where it pays", "auto", choices=_COMPILE, **_OF_MACHINE)
    cache_targets: bool = setting("reuse values of next states; same results", True, identity=False, label=False)
    replay_on_device: bool = setting("keep the frames of replay on the GPU", False, identity=False, label=False)
    log_every: int = setting("interactions between rows of training.csv", least=1, compared=False, label=False)
    algo: AlgoConfig = setting("the method", AlgoConfig)
    env: EnvConfig = setting("the environment", EnvConfig)
    network: NetworkConfig = setting("the network of one member", NetworkConfig)
    evaluation: EvaluationConfig = setting("evaluation with greedy episodes", EvaluationConfig)
    probe: ProbeConfig = setting("values at fixed initial states", ProbeConfig, label=False)
    checkpoint: CheckpointConfig = setting("checkpoints to resume from", CheckpointConfig, identity=False, label=False)
    logger: LoggerConfig = setting("mirrors of the run", LoggerConfig, identity=False, label=False)


def register_schema() -> None:
    """Store the schema where the `schema` entry of conf/config.yaml's defaults finds it."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=Config)


# In conf/: ${if:condition,then,otherwise}, for a default that follows another field.
OmegaConf.register_new_resolver("if", lambda condition, then, otherwise: then if condition else otherwise, replace=True)


def _exact_score(which: str, *, _parent_: Any) -> float | None:
    """A score that an environment computes from its options; None where they are wrong, which `make_env` explains."""
    from meanq.config.extensions import import_environment

    options: Any = OmegaConf.to_container(_parent_.options, resolve=True)
    try:
        return import_environment(_parent_.kind).exact_scores(str(_parent_.id), **options)[which]
    except (ConfigError, AttributeError, TypeError, ValueError):
        return None


# In conf/env/: ${exact_score:random} and ${exact_score:reference}.
OmegaConf.register_new_resolver("exact_score", _exact_score, replace=True)
