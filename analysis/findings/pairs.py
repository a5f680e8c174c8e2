"""Methods with and without something, say a target network: pairs of labels that differ in one switched field alone.

Compared by the rules of analysis.findings.claims, for each family of environments (garnet_0, garnet_1, ... are one):

return     without against with: who does without it?
bias       without against with: at what price in bias?
std, gap   each method without it against the first one without it: is it variance that is reduced?
mean_return, mean_bias   each method without it against MeanQ without it: is an ensemble's mean needed?

A number is higher or lower where the 95% interval of the difference is on one side of zero.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from meanq.config.fields import field_value, flatten, is_compared

from ..labels import short_labels
from ..runs import RunSet
from .claims import SPREADS, Claim
from .decide import relation
from .sample import take_samples

_NAMES = ("label", "algo.name", "network.name")  # of what the other fields say
_COLUMNS = ["games", "question", "method", "label", "against", "metric"]
_NUMBERS = ["verdict", "difference", "low", "high", "details"]


@dataclass(frozen=True)
class Pair:
    """The labels of a method with what the field switches on, and without it; empty where there are no such runs."""

    on: str
    off: str

    @property
    def method(self) -> str:
        """The label that names it."""
        return self.on or self.off


def find_pairs(found: RunSet, switched: str) -> list[Pair]:
    """All labels as pairs; off is where the field is null or false. A label that has a partner anywhere is with it."""
    sides: dict[Any, dict[bool, str]] = defaultdict(dict)
    groups = {key: flatten(runs[0].config) for key, runs in found.groups().items()}
    names = sorted({name for flat in groups.values() for name in flat if is_compared(name)} - {*_NAMES, switched})
    for (env, label), flat in groups.items():
        method = env, *(str(field_value(flat, name)) for name in names)
        sides[method].setdefault(field_value(flat, switched) not in (None, False), label)
    pairs = dict.fromkeys(Pair(labels.get(True, ""), labels.get(False, "")) for labels in sides.values())
    paired = {label for pair in pairs if pair.on and pair.off for label in (pair.on, pair.off)}
    return [pair for pair in pairs if (pair.on and pair.off) or pair.method not in paired]


def family(env: str) -> str:
    """Environments that differ in a number at the end of their name are a family."""
    return re.sub(r"_\d+$", "", env)


def judge_pairs(found: RunSet, pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row per family, method and comparison."""
    evidence, _ = take_samples(found)
    short = short_labels(found.labels)
    mean = next((pair for pair in pairs if short[pair.method] == "meanq"), Pair("", ""))
    rows = []
    for games in dict.fromkeys(map(family, evidence)):
        of_family = {env: samples for env, samples in evidence.items() if family(env) == games}
        for pair in pairs:
            for question, metric, label, other in _comparisons(pair, pairs[0], mean):
                result = relation(of_family, Claim(metric, label, other, of_labels=True))
                numbers = result.verdict, result.difference, result.low, result.high, " | ".join(result.details)
                rows.append((games, question, pair.method, label, other, metric, *numbers))
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_NUMBERS])


def _comparisons(pair: Pair, first: Pair, mean: Pair) -> Iterable[tuple[str, str, str, str]]:
    """(question, metric, label, the label that it is compared with)."""
    if pair.on and pair.off:
        yield from ((metric, metric, pair.off, pair.on) for metric in ("return", "bias"))
    if pair.off and first.off and pair is not first:
        yield from ((metric, metric, pair.off, first.off) for metric in SPREADS)
    if pair.off and mean.off and pair is not mean:
        yield from ((f"mean_{metric}", metric, pair.off, mean.off) for metric in ("return", "bias"))
