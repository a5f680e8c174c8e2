"""One entry per metric. Tables, figures, the report, W&B, TensorBoard and the docs read it: a new metric is one entry.

`make docs` writes them into docs/.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from meanq.metrics import definitions
from meanq.metrics.definitions import BIASES, LATE

PER_RUN, PER_GROUP, OVER_RUNS = "per run", "per group", "over runs"
EVALUATIONS, PROBES, TRAINING, TIMINGS = "evaluations.csv", "probes.npz", "training.csv", "timings.csv"
DIAGNOSIS = "diagnosis.csv"
# Sections of the W&B dashboard.
PAPER, VALUES, LEARNING = "The paper's four metrics", "Values at initial states", "Training"

Curve = tuple[np.ndarray, np.ndarray]  # steps [T], values [T]


@dataclass(frozen=True)
class RunData:
    """Evaluated episodes and probes of a run."""

    scores: tuple[float, float] | None  # random and reference, see `definitions.normalising_scores`
    step: np.ndarray  # [N], ascending, of each evaluated episode
    episodes: Mapping[str, np.ndarray]  # [N] each: the columns of evaluations.csv
    probe_step: np.ndarray = field(default_factory=lambda: np.empty(0, int))  # [T]
    q: np.ndarray | None = None  # [T, P, K, A] at the probe states; None without probes
    true_q: np.ndarray | None = None  # [P, A], where the environment knows it
    policy_value: np.ndarray | None = None  # [T, P], exact, of the greedy policy; where the environment knows it
    seconds: float = math.nan  # wall-clock time of training

    def with_probes(self, probes: Any) -> "RunData":
        """The same with probes: a meanq.rundir.reader.Probes."""
        return replace(self, probe_step=probes.step, q=probes.q, true_q=probes.true_q, policy_value=probes.policy_value)

    @property
    def steps(self) -> np.ndarray:
        """Of the evaluations, [T]."""
        return self._means[0]

    @property
    def episode_counts(self) -> np.ndarray:
        """Of each evaluation, [T]."""
        return self._means[1]

    def mean(self, column: str) -> np.ndarray:
        """Over the episodes of each evaluation, [T]."""
        return self._means[2][column]

    def probed(self, values: np.ndarray) -> Curve:
        """A number per probe as a curve, NaN where it is not finite."""
        return self.probe_step, np.where(np.isfinite(values), values, np.nan)

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        return definitions.episode_means(self.step, self.episodes)


@dataclass(frozen=True)
class Metric:
    """A metric: what it is called, what it means, how it is computed, and where it is shown.

    `compute` depends on the scope. It returns None where the metric does not apply.

    PER_RUN    RunData -> Curve, or with `once` RunData -> number; None: a column of another table
    PER_GROUP  q [R, P, K, A] of a group of runs, policy_value [R, P] or None -> number; None for a ratio
    OVER_RUNS  Decomposition of all runs -> number
    """

    name: str  # in the table of analysis.metrics; `<layer>` stands for several names
    title: str  # on axes
    meaning: str
    compute: Callable[..., Any] | None = None
    scope: str = PER_RUN
    source: str = EVALUATIONS  # the file of a run that it comes from
    unit: str = ""
    form: str = "{:.3g}"
    head: str = ""  # over columns of tables, if it is not the title
    mirror: str = ""  # name in W&B and TensorBoard
    in_table: bool = True  # of analysis.metrics; otherwise it is mirrored only
    once: bool = False  # one number of a run, at its last evaluation
    ratio_of: str = ""  # the metric that this one is, divided by the normalised return of the group
    signed: bool = False  # below and above zero
    averaged: bool = False  # over games, too
    cumulative: bool = False  # looks back over steps by itself, so its last value is the one to show
    shown: str = ""  # figures with a panel, and tables (`late`, `summary`) with a column of it
    dashboard: str = ""  # section of the W&B dashboard

    @property
    def column(self) -> str:
        """Its name over a column."""
        return self.head or self.title

    def of_run(self, run: RunData) -> Any:
        """The metric of a run: a curve, or a number with `once`; None where it does not apply."""
        if self.compute is None or (self.source == EVALUATIONS and not len(run.step)):
            return None
        return self.compute(run)

    def is_in(self, place: str) -> bool:
        """Whether a figure or table shows it."""
        return place in self.shown.split()


# --- computing metrics of a run -------------------------------------------------------------------------------------


def _column(name: str) -> Callable[[RunData], Curve | None]:
    return lambda run: (run.steps, run.mean(name)) if name in run.episodes else None


def _bias(kind: str) -> Callable[[RunData], Curve]:
    return lambda run: (run.steps, definitions.bias(run.mean("value"), run.mean(BIASES[kind])))


def _normalised_return(run: RunData) -> Curve | None:
    if run.scores is None or not len(run.step):
        return None
    return run.steps, definitions.normalise(run.mean("return"), run.scores)


def _area(curve: Curve | None) -> Curve | None:
    return None if curve is None else (curve[0], definitions.area_under_curve(*curve))


def _return_std(run: RunData) -> Curve:
    """At evaluations of 2 episodes or more."""
    several = run.episode_counts > 1
    parts = np.split(run.episodes["return"], np.cumsum(run.episode_counts)[:-1])
    spread = [part.std(ddof=1) for part, some in zip(parts, several, strict=True) if some]
    return run.steps[several], np.array(spread, float)


def _normalised_return_error(run: RunData) -> Curve:
    """At evaluations of 2 episodes or more; none without scores."""
    if run.scores is None:
        return np.empty(0), np.empty(0)
    steps, spread = _return_std(run)
    random, reference = run.scores
    episodes = run.episode_counts[run.episode_counts > 1]
    return steps, spread / np.sqrt(episodes) / abs(reference - random)


def _late_interquartile_mean(run: RunData) -> Curve:
    returns = run.episodes["return"]
    late = [returns[(run.step > LATE * step) & (run.step <= step)] for step in run.steps]
    return run.steps, np.array([definitions.interquartile_mean(part) for part in late], float)


def _steps_to_reference(run: RunData) -> float | None:
    curve = _normalised_return(run)
    return None if curve is None else definitions.steps_to_reference(*curve)


def _true_bias(run: RunData) -> Curve | None:
    if run.q is None or run.true_q is None:
        return None
    return run.probed(definitions.bias(definitions.state_value(run.q), run.true_q.max(-1)).mean(-1))


def _overestimation(run: RunData) -> Curve | None:
    if run.q is None or run.policy_value is None:
        return None
    return run.probed(definitions.overestimation(run.q, run.policy_value).mean(-1))


def _policy_loss(run: RunData) -> Curve | None:
    if run.true_q is None or run.policy_value is None:
        return None
    return run.probed(definitions.policy_loss(run.policy_value, run.true_q).mean(-1))


def _optimality(run: RunData) -> Curve | None:
    if run.true_q is None or run.policy_value is None:
        return None
    return run.probed(definitions.optimality(run.policy_value, run.true_q))


def _probe_value(run: RunData) -> Curve | None:
    return None if run.q is None else run.probed(definitions.state_value(run.q).mean(-1))


def _of_members(statistic: Callable[[np.ndarray], np.ndarray]) -> Callable[[RunData], Curve | None]:
    """Of ensembles only: a zero for one member would look like agreement."""

    def compute(run: RunData) -> Curve | None:
        return None if run.q is None or run.q.shape[2] < 2 else run.probed(statistic(run.q))

    return compute


def _of_members_normalised(statistic: Callable[[np.ndarray], np.ndarray]) -> Callable[[RunData], Curve | None]:
    """Divided by the normalised return of the step, where that is more than twice its standard error."""

    def compute(run: RunData) -> Curve | None:
        found, score = _of_members(statistic)(run), _normalised_return(run)
        if found is None or score is None:
            return None
        errors = dict(zip(*_normalised_return_error(run), strict=True))
        scores = {step: s for step, s in zip(*score, strict=True) if s > 2 * errors.get(step, math.inf)}
        kept = np.isin(found[0], list(scores))
        return found[0][kept], found[1][kept] / np.array([scores[step] for step in found[0][kept]], float)

    return compute


# --- the entries, in the order of panels and columns ----------------------------------------------------------------


def _of_values(name: str, title: str, meaning: str, compute: Any, scope: str, **more: Any) -> Metric:
    """Of the values of several runs at the probe states."""
    return Metric(name, title, meaning, compute, scope, PROBES, **more)


def _mirrored(mirror: str, source: str, title: str, meaning: str, compute: Any = None, **more: Any) -> Metric:
    """In W&B and TensorBoard only."""
    more = {"name": mirror.partition("/")[2], **more}
    return Metric(title=title, meaning=meaning, compute=compute, source=source, mirror=mirror, in_table=False, **more)


# fmt: off
_ENTRIES = [
    Metric("return", "return", "undiscounted return, mean over the evaluation's episodes", _column("return"),
           unit="score", form="{:.2f}", mirror="evaluation/return", dashboard=PAPER,
           shown="study series late summary"),
    Metric("normalised_return", "normalised return",
           "(return - random) / (reference - random), where the environment has both scores; from 500,000 "
           "`total_steps` on with the random score of the paper's table 2", _normalised_return,
           unit="normalised", mirror="evaluation/normalised_return", dashboard=VALUES, averaged=True, shown="summary"),
    Metric("auc", "AUC", "mean height of the learning curve up to this step",
           lambda run: _area((run.steps, run.mean("return"))), unit="score", cumulative=True, shown="summary"),
    Metric("normalised_auc", "normalised AUC", "mean height of the curve of normalised returns up to this step",
           lambda run: _area(_normalised_return(run)), unit="normalised", cumulative=True,
           shown="summary"),
    Metric("bias_clipped", "bias of V(s0)",
           "V(s0) minus the discounted return of rewards as learned from (clipped on Atari): the paper's bias",
           _bias("clipped"), unit="value", form="{:+.2f}", head="bias", mirror="evaluation/bias", dashboard=PAPER,
           signed=True, averaged=True, shown="study series late summary"),
    Metric("bias_unclipped", "bias of V(s0), unclipped",
           "V(s0) minus the discounted return of rewards as the game gives them", _bias("unclipped"),
           unit="value", form="{:+.2f}", head="bias", signed=True, averaged=True, shown="summary"),
    Metric("bias_first_life", "bias of V(s0), first life",
           "V(s0) minus the discounted return of rewards as learned from, up to the first loss of life",
           _bias("first_life"), unit="value", form="{:+.2f}", head="bias", signed=True, averaged=True, shown="summary"),
    Metric("bias_true", "bias to true Q*",
           "V(s0) - max_a Q*(s0, a), mean over the probe states; only where the true Q* is known (`env=chain`, "
           "`env=garnet`)",
           _true_bias, source=PROBES, unit="value", form="{:+.2f}", mirror="probe/error", signed=True,
           shown="study truth"),
    Metric("overestimation", "overestimation",
           "V(s0) minus the exact value of the greedy policy, mean over the probe states (`env=garnet`); with "
           "`policy_loss` it adds up to `bias_true`",
           _overestimation, source=PROBES, unit="value", form="{:+.2f}", mirror="probe/overestimation", signed=True,
           shown="truth"),
    Metric("policy_loss", "policy loss",
           "exact value of the greedy policy minus max_a Q*(s0, a), mean over the probe states; never positive "
           "(`env=garnet`)",
           _policy_loss, source=PROBES, unit="value", form="{:+.2f}", mirror="probe/policy_loss", signed=True,
           shown="truth"),
    Metric("optimality", "share of the optimal value",
           "exact value of the greedy policy / optimal value, both means over the probe states (`env=garnet`); not "
           "defined unless the latter is above zero",
           _optimality, source=PROBES, mirror="probe/optimality", shown="truth"),
    Metric("adam_share_<layer>", "share of Adam's step",
           "share of Adam's step that a layer's median weight takes; near 0: the layer is starved",
           source=TRAINING, unit="share", mirror="training/adam_share_<layer>"),
    Metric("adam_share_q90_<layer>", "share of Adam's step, 90%",
           "the same of the weight that a tenth of the layer's weights exceeds",
           source=TRAINING, unit="share", mirror="training/adam_share_q90_<layer>", shown="optimisation diagnosis"),
    Metric("value_spread", "spread of value distributions",
           "standard deviation of members' value distributions, mean over the probe states",
           source=TRAINING, unit="value", mirror="training/value_spread", shown="optimisation"),
    Metric("dormant", "dormant units",
           "share of units whose mean absolute activation at the probe states is at most 0.025 of their layer's mean; "
           "of all layers and members", source=DIAGNOSIS, unit="share", form="{:.3f}", mirror="diagnosis/dormant",
           dashboard=LEARNING, shown="optimisation diagnosis"),
    Metric("dormant_<layer>", "dormant units of a layer", "the same of one layer",
           source=DIAGNOSIS, unit="share", form="{:.3f}", mirror="diagnosis/dormant_<layer>", shown="diagnosis"),
    Metric("feature_rank", "rank of features",
           "least number of singular values that hold 99% of the sum of those of the last features (hidden units after "
           "their rectifier) at the probe states; mean over members", source=DIAGNOSIS, form="{:.1f}",
           mirror="diagnosis/feature_rank", dashboard=LEARNING, shown="optimisation diagnosis"),
    Metric("seconds", "seconds", "wall-clock time since the start", lambda run: run.seconds,
           source=TIMINGS, unit="seconds", mirror="timing/seconds", once=True),
    Metric("steps_to_reference", "steps to reference",
           "the first evaluation with a normalised return of 1 or more; empty if there is none", _steps_to_reference,
           unit="steps", once=True, shown="summary"),
    Metric("iqm_last", "IQM of late returns",
           "interquartile mean of the returns of all episodes in the last quarter of training up to this step",
           _late_interquartile_mean, unit="score", form="{:.2f}", head="IQM", mirror="evaluation/iqm_last",
           dashboard=VALUES, cumulative=True, shown="late summary"),

    _of_values("normalised_std", "normalised std", "std / normalised return", None, PER_GROUP,
               head="norm. std", ratio_of="std", averaged=True, shown="study series late summary"),
    _of_values("normalised_jensen_gap", "normalised gap", "jensen_gap / normalised return", None, PER_GROUP,
               head="norm. gap", ratio_of="jensen_gap", averaged=True, shown="study series late summary"),
    _of_values("std", "std of V(s0)", "standard deviation over runs of V(s0), mean over the probe states",
               lambda q, _: definitions.value_std(q), PER_GROUP, unit="value", shown="study"),
    _of_values("jensen_gap", "Jensen gap", "E[max_a Q] - max_a E[Q] over runs, mean over the probe states",
               lambda q, _: definitions.jensen_gap(q), PER_GROUP, unit="value", shown="study"),
    _of_values("mean_bias", "bias of the mean",
               "max_a E[Q] over runs minus the exact value of the greedy policy, mean over runs and the probe states "
               "(`env=garnet`); with `jensen_gap` it adds up to `overestimation`",
               lambda q, policy: None if policy is None else definitions.mean_bias(q, policy), PER_GROUP,
               unit="value", form="{:+.2f}", signed=True, shown="truth"),

    _of_values("member_correlation", "correlation",
               "correlation of two members' errors, shared_variance / single_variance",
               lambda split: split.correlation, OVER_RUNS, form="{:.2f}", averaged=True,
               shown="mechanism series late diagnosis"),
    _of_values("effective_size", "effective size",
               "single_variance / mean_variance; 1 (identical members) to K (independent ones)",
               lambda split: split.effective_size, OVER_RUNS, unit="members", form="{:.2f}", averaged=True,
               shown="mechanism series late diagnosis"),
    _of_values("shared_variance", "shared variance", "variance that all members of a run share",
               lambda split: split.shared_variance, OVER_RUNS, unit="value^2", shown="mechanism"),
    _of_values("member_variance", "member variance", "variance of one member of a run around the run's mean",
               lambda split: split.member_variance, OVER_RUNS, unit="value^2", shown="mechanism"),
    _of_values("single_variance", "variance of one member", "shared_variance + member_variance",
               lambda split: split.single_variance, OVER_RUNS, unit="value^2"),
    _of_values("mean_variance", "variance of the mean",
               "variance of the ensemble mean, shared_variance + member_variance / K",
               lambda split: split.mean_variance, OVER_RUNS, unit="value^2"),
    _of_values("member_correlation_true", "correlation (Q*)", "correlation of two members' errors around the true Q*",
               lambda split: split.true_correlation, OVER_RUNS, form="{:.2f}", shown="mechanism truth"),
    _of_values("effective_size_true", "effective size (Q*)",
               "mean squared error of one member / that of the ensemble mean, against Q*",
               lambda split: split.true_effective_size, OVER_RUNS, unit="members", form="{:.2f}",
               shown="mechanism truth"),

    _mirrored("evaluation/return_std", EVALUATIONS, "std of returns", "sample standard deviation over the episodes",
              _return_std, unit="score"),
    _mirrored("evaluation/normalised_return_error", EVALUATIONS, "standard error of the normalised return",
              "standard error of the normalised return over the episodes", _normalised_return_error),
    _mirrored("evaluation/value", EVALUATIONS, "V(s0) of evaluation episodes",
              "V(s0) = max_a mean_k Q_k(s0, a) where episodes begin", _column("value"), dashboard=VALUES),
    _mirrored("evaluation/discounted_return", EVALUATIONS, "discounted return that followed",
              "discounted return of rewards as learned from", _column("discounted_return"), dashboard=VALUES),
    _mirrored("evaluation/discounted_return_unclipped", EVALUATIONS, "discounted return, unclipped",
              "the same of rewards as the game gives them", _column("discounted_return_unclipped")),
    _mirrored("evaluation/discounted_return_first_life", EVALUATIONS, "discounted return, first life",
              "that of rewards as learned from, up to the first loss of life", _column("discounted_return_first_life")),
    _mirrored("evaluation/length", EVALUATIONS, "length of episodes", "interactions of an episode", _column("length")),
    _mirrored("probe/value", PROBES, "V(s0) at the probe states (the band is the std over seeds)",
              "V(s0), mean over the probe states", _probe_value, name="probe_value", dashboard=VALUES),
    _mirrored("probe/member_std", PROBES, "std of V(s0) over members",
              "population standard deviation over members of max_a Q_k(s0, a), mean over the probe states",
              _of_members(definitions.member_std), dashboard=VALUES),
    _mirrored("probe/member_jensen_gap", PROBES, "Jensen gap over members",
              "mean_k max_a Q_k(s0, a) - max_a mean_k Q_k(s0, a), mean over the probe states; never negative",
              _of_members(definitions.member_jensen_gap), dashboard=VALUES),
    _mirrored("probe/member_std_normalised", PROBES, "std of V(s0) over members / normalised return",
              "`probe/member_std` / `evaluation/normalised_return` of the same step, where that is more than twice its "
              "standard error", _of_members_normalised(definitions.member_std), dashboard=PAPER),
    _mirrored("probe/member_jensen_gap_normalised", PROBES, "Jensen gap over members / normalised return",
              "the same of `probe/member_jensen_gap`", _of_members_normalised(definitions.member_jensen_gap),
              dashboard=PAPER),
    _mirrored("probe/q", PROBES, "values", "histogram of Q of all members and actions at all probe states"),
    _mirrored("training/loss", TRAINING, "loss", "mean since the row before", dashboard=LEARNING),
    _mirrored("training/mean_q", TRAINING, "mean Q of minibatches", "mean since the row before", dashboard=LEARNING),
    _mirrored("training/gradient_norm", TRAINING, "gradient norm", "mean since the row before", dashboard=LEARNING),
    _mirrored("training/epsilon", TRAINING, "epsilon", "share of random actions", dashboard=LEARNING),
    _mirrored("training/games", TRAINING, "games", "training games so far"),
    _mirrored("training/game_return", TRAINING, "return of training games", "mean of the games since the row before",
              dashboard=LEARNING),
    _mirrored("timing/steps_per_second", TIMINGS, "steps per second", "speed since the row before", dashboard=LEARNING),
    _mirrored("timing/share_<part>", TIMINGS, "share of time",
              "where the time went: `timing/share_act`, `timing/share_env`, `timing/share_sample`, "
              "`timing/share_learn`, `timing/share_evaluate`, `timing/share_save`, `timing/share_other`"),
]
# fmt: on
METRICS = {metric.name: metric for metric in _ENTRIES}


def describe(name: str) -> Metric:
    """The metric of this name. That of a layer, such as adam_share_hidden, has the layer in its title."""
    if name in METRICS:
        return METRICS[name]
    prefixes = {pattern.removesuffix("<layer>"): metric for pattern, metric in METRICS.items() if "<layer>" in pattern}
    prefix = max(filter(name.startswith, prefixes), key=len)
    return replace(prefixes[prefix], name=name, title=f"{prefixes[prefix].title}, {name.removeprefix(prefix)}")


def shown_in(place: str) -> list[Metric]:
    """The metrics that a figure or table shows, in its order."""
    return [metric for metric in METRICS.values() if metric.is_in(place)]


def titles_of(place: str) -> dict[str, str]:
    """Names and titles of the metrics that a figure shows, in its order."""
    return {metric.name: metric.title for metric in shown_in(place)}


def tabulated(scope: str) -> list[Metric]:
    """The metrics of this scope in the table of analysis.metrics."""
    return [metric for metric in METRICS.values() if metric.scope == scope and metric.in_table]


def diagnostic_columns(source: str = TRAINING) -> re.Pattern[str]:
    """Matches the columns of training.csv, or of diagnosis.csv, that are in the table of analysis.metrics."""
    names = [metric.name for metric in tabulated(PER_RUN) if metric.source == source]
    return re.compile("|".join(re.sub(r"<\w+>", r"\\w+", name) for name in names))
