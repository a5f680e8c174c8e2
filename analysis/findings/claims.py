"""The paper's conclusions as comparisons, and the rules by which runs support or refute them.

The rules do not depend on the runs at hand:

Methods     A method is the label with the name of its algorithm (`dqn`), or else the only label with that algorithm.
            Two methods are compared in each environment where both have at least 3 runs (std and gap: 4) of the same
            length that were evaluated to the end. Other runs are left out, with a note.
Windows     late: the last quarter of training, steps > 3/4. early: the first quarter, steps <= 1/4. Numbers are means
            over the evaluations, or probes, in the window.
Numbers     return: normalised return.
            bias: |mean bias over runs|, against the return that `--bias` names.
            In environments that are solved exactly (env=garnet) both are exact: the value of the greedy policy divided
            by the optimal one, and |mean overestimation|, V minus the value of the greedy policy.
            std, gap: normalised standard deviation and Jensen gap over runs (see analysis.metrics), with the same
            number of runs of both methods (those with the lowest seeds), at the probes where the normalised
            performance of both is clearly above zero.
            correlation: correlation c of the members' errors, as log(1 + K c / (1 - c)), which increases with c and
            has jackknife pseudovalues per run (analysis.metrics, `member_pseudovalues`). It is free of the bias of
            few runs that the estimates in tables have. Ensembles of equal size only.
            member variance: logarithm of the variance between the members of a run, mean over late probes.
Difference  bias, std, gap: (A - B) / (A + B), which is between -1 and 1 because the numbers are never negative, so no
            environment dominates by its unit. Others: A - B. Then the mean over environments.
Interval    95%, from percentiles of the difference between random draws of both methods' numbers, with fixed seeds that
            differ by environment and method. std, gap: a bootstrap over runs. Others: draws of the mean over runs from
            Student's distribution (the Behrens-Fisher interval, which does not assume equal variances).
Comparison  supported: the whole interval is on the claimed side of zero. refuted: the whole interval is on the other
            side; the interval is then 100% - 5% / m, with m the number of comparisons of the finding, because one
            comparison is enough to refute it by chance. not decidable: neither, or there is nothing to compare.
Finding     supported: all comparisons are. refuted: at least one comparison is. not decidable: otherwise.

`FINDINGS` lists the comparisons of F2 to F8. F1 has its own rule (analysis/findings/correlation.py).
"""

from dataclasses import dataclass, field
from math import isnan, nan

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "not decidable"
HIGHER, LOWER, NOT_TOLD_APART = "higher", "lower", "not told apart"  # where nothing is claimed
TAIL = 0.025  # of a 95% interval, and of random pairings
LEAST_RUNS_FOR_SPREAD = 4  # one in nine resamples of 3 runs repeats a single run and has no spread
SPREADS = ("std", "gap")
OF_MEMBERS = ("correlation", "member_variance")
COMPARED = ("return", "bias", *SPREADS, *OF_MEMBERS)
EARLY = 1 / 4


@dataclass(frozen=True)
class Claim:
    """A number of method A is above, or below, that of method B."""

    metric: str  # early_return, or one of COMPARED
    a: str
    b: str
    sign: int = 1  # 1: above, -1: below
    of_labels: bool = False  # a and b are labels, not names of methods

    def __str__(self) -> str:
        return f"{self.metric.replace('_', ' ')} of {self.a} {'above' if self.sign > 0 else 'below'} {self.b}"


@dataclass
class Result:
    """A comparison, and the numbers behind it."""

    comparison: str
    verdict: str = UNDECIDED
    difference: float = nan
    low: float = nan
    high: float = nan
    details: list[str] = field(default_factory=list)  # by environment: numbers, or why it is left out

    def __str__(self) -> str:
        number = "" if isnan(self.difference) else f" {self.difference:+.3f}"
        interval = "" if isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.comparison}: {self.verdict}{number}{interval}"


@dataclass
class Finding:
    """One conclusion of the paper, and its comparisons."""

    name: str
    statement: str
    results: list[Result]

    @property
    def verdict(self) -> str:
        """Supported if all comparisons are; refuted if one is."""
        verdicts = {result.verdict for result in self.results}
        return REFUTED if REFUTED in verdicts else SUPPORTED if verdicts == {SUPPORTED} else UNDECIDED


def _finding(statement: str, *comparisons: str) -> tuple[str, list[Claim]]:
    """A comparison is 'a b return+ std-': the return of a is above that of b, the std below."""
    claims = []
    for comparison in comparisons:
        a, b, *metrics = comparison.split()
        claims += [Claim(metric[:-1], a, b, 1 if metric[-1] == "+" else -1) for metric in metrics]
    return statement, claims


CORRELATION = "Standard deviation and Jensen gap are positively correlated across methods."  # F1
FINDINGS = {
    "F2": _finding("A target network lowers DQN's bias and variance.", "dqn dqn_no_target bias- std-"),
    "F3": _finding(
        "MeanQ beats DQN with and without a target network, with lower variance, gap and bias.",
        "meanq dqn return+ std- gap- bias-",
        "meanq_no_target dqn_no_target return+ std- gap- bias-",
    ),
    "F4": _finding(
        "Without a target network MeanQ starts a little worse than with one, and then overtakes it.",
        "meanq_no_target meanq early_return- return+",
    ),
    "F5": _finding(
        "Avg-DQN and Ens-DQN lower variance and bias against DQN without a matching gain in return: less than MeanQ's.",
        "avg_dqn dqn std- bias-",
        "avg_dqn meanq return-",
        "ens_dqn dqn std- bias-",
        "ens_dqn meanq return-",
    ),
    "F6": _finding("MeanQ beats Ens-DQN on return, standard deviation and gap.", "meanq ens_dqn return+ std- gap-"),
    "F7": _finding(
        "Neither a larger model nor more updates explain it, nor both: each stays below MeanQ's return.",
        "rainbow_large meanq_rainbow return-",
        "rainbow_more_updates meanq_rainbow return-",
        "rainbow_large_more_updates meanq_rainbow return-",
    ),
    "F8": _finding(
        "Members that share minibatches (Ens-DQN) correlate more than MeanQ's: expected by the paper, not measured.",
        "meanq ens_dqn correlation-",
    ),
}
