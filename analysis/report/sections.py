"""What the report says, section by section. One without data says why. Tables and figures are also files beside it."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from meanq.metrics.registry import METRICS, shown_in, titles_of

from .. import aggregate
from ..figures.catalogue import KINDS as FIGURES
from ..figures.catalogue import draw_all
from ..figures.palette import styles
from ..figures.tables import cited_rows, curve_table
from ..findings.decide import decide
from ..late import late_table
from ..metrics import Metrics
from ..results.provenance import commands
from ..runs import AnalysisError, RunSet
from . import tables
from .charts import Chart, CurveCharts, intervals, profile_chart
from .page import Block, Section, render, table

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
TRUTH = titles_of("truth")
MECHANISM = [name for name in titles_of("mechanism") if name not in TRUTH]
STUDY = titles_of("study")
NOT_EVALUATED = "no run has been evaluated yet."
_AGGREGATES = {"iqm": "interquartile mean", "optimality_gap": "optimality gap", "mean": "mean", "median": "median"}


class Report:
    """The sections of a set of runs."""

    def __init__(self, found: RunSet, metrics: Metrics, bias: str, directory: Path, command: str) -> None:
        self._found, self._metrics, self._bias = found, metrics, bias
        self._directory, self._command = directory, command
        self._styles = styles(found.labels)
        rank = {label: i for i, label in enumerate(self._styles)}
        ordered = sorted(found.groups().items(), key=lambda group: (group[0][0], rank[group[0][1]]))
        self._groups = dict(ordered)
        names = ["normalised_return", f"bias_{bias}", *STUDY, *MECHANISM, *TRUTH]
        averaged = [name for name in names if METRICS[name].averaged and name not in MECHANISM]
        curves = curve_table(metrics.table, names, averaged)
        self._charts = CurveCharts(curves, list(self._styles), cited_rows(found.lengths, found.envs, average=False))
        self._evaluated = any(run.last_evaluation for run in found.runs)
        self._notes = list(metrics.notes)
        self._runs = tables.runs_table(self._groups)
        shown = [name for name in FIGURES if name != "series"]  # which has no section
        drawn, _ = draw_all(found, metrics, directory / "figures", shown)
        self._drawn = {figure.name: figure for figure in drawn}
        (directory / "tables").mkdir(parents=True, exist_ok=True)

    def messages(self) -> list[str]:
        """Every problem and note, once."""
        return list(dict.fromkeys([*self._found.messages(), *self._notes]))

    @property
    def size(self) -> str:
        """In words."""
        found = self._found
        counts = {"run": len(found.runs), "label": len(found.labels), "game": len(found.envs)}
        return ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())

    def page(self) -> str:
        """The page as HTML, with its tables and figures written beside it."""
        parts: list[tuple[str, str, Callable[[], list[Block]]]] = [
            ("findings", "The paper's findings", self._findings),
            ("summary", "Summary", self._summary),
            ("study", "Return, bias, standard deviation and Jensen gap", self._study),
            ("curves", "Learning curves", self._learning),
            ("mechanism", "How members differ", self._mechanism),
            ("diagnosis", "State of the networks", self._diagnosis),
            ("aggregates", "Aggregates over games", self._aggregates),
            ("paper", "Beside the paper's tables", self._paper),
            ("truth", "Against the true values", self._truth),
            ("cost", "Cost", self._cost),
            ("configurations", "Configurations", self._configurations),
        ]
        sections = [Section(name, title, make()) for name, title, make in parts]
        sections.insert(0, Section("runs", "Runs, and what is wrong with them", self._problems()))
        count = Counter(run.state for run in self._found.runs)
        states = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
        title = f"Report: {', '.join(sorted({run.config['study'] for run in self._found.runs}))}"
        subtitle = f"{self.size} ({states}). Made by {self._command}"
        return render(title, subtitle, sections, self._styles, self._found.envs)

    # --- sections ---------------------------------------------------------------------------------------------------

    def _problems(self) -> list[Block]:
        messages = sorted(self._found.messages(), key=lambda message: ": failed, evaluated" not in message)
        blocks = [Block("lines", name="problems", lines=messages)]
        if not messages:
            blocks = [Block("text", f"All {len(self._found.runs)} runs are finished, and no directory was skipped.")]
        for run in self._found.runs:
            if run.state != "finished" and isinstance(run.status.get("traceback"), str):
                blocks.append(Block("source", run.status["traceback"], f"Traceback of {run.directory}"))
        if self._notes:
            lines = list(dict.fromkeys(self._notes))
            blocks += [Block("text", "About the numbers below:"), Block("lines", name="notes", lines=lines)]
        return [*blocks, self._table("runs", "All runs", self._runs, folded=True)]

    def _findings(self) -> list[Block]:
        if not self._evaluated:
            return [Block("missing", NOT_EVALUATED)]
        findings, notes = decide(self._found, self._bias)
        self._notes += notes
        text = (
            "Each conclusion of the paper is supported, refuted or not decidable from these runs, by rules that were "
            "fixed before looking at data (analysis/findings/claims.py). Differences come with 95% intervals."
        )
        blocks = [Block("text", text)]
        for finding in findings:
            lines = [{"text": str(result), "details": result.details} for result in finding.results]
            alone = all(result.difference != result.difference for result in finding.results)  # the lines say why
            blocks.append(Block("finding", finding.statement, finding.verdict, finding.name, lines=lines, folded=alone))
        return blocks

    def _summary(self) -> list[Block]:
        if not self._evaluated:
            return [Block("missing", NOT_EVALUATED)]
        caption = (
            "Means over the last quarter of training, up to `step`, and over `runs`, which have every evaluation in "
            f"it, with Student's 95% interval of the return. Bias: {self._bias}. AUC (mean height of the learning "
            "curve) and IQM: at the last evaluation. Steps to reference (normalised return 1): empty unless every run "
            "gets there. Norm. std and gap: over groups of up to 5 runs, where they are defined."
        )
        unwanted = {metric.name for metric in METRICS.values() if metric.column == "bias"} - {f"bias_{self._bias}"}
        shown = [metric for metric in shown_in("summary") if metric.name not in unwanted]
        frame = late_table(self._found, self._metrics, shown)
        ends = [f"{metric.column} {end}" for metric in shown for end in ("low", "high") if metric.name != "return"]
        self._write("metrics", self._metrics.table)
        files = ["tables/metrics.csv"]
        blocks = [self._table("summary", "", frame.drop(columns=ends, errors="ignore"), caption, files)]
        steps = tables.steps_to_average(self._found, list(self._styles))
        if len(steps):
            caption = "The first evaluation of a seed at which the mean normalised return over games is 1 or more."
            blocks.append(self._table("steps_to_reference", "Steps to an average of 1", steps, caption))
        return blocks

    def _study(self) -> list[Block]:
        normalised = self._row("normalised_std")
        rows = [
            self._row("normalised_return") or self._row("return"),
            self._row(f"bias_{self._bias}"),
            normalised or self._row("std"),
            self._row("normalised_jensen_gap" if normalised else "jensen_gap"),
        ]
        divided = "divided by the normalised return; not drawn where that is not clearly above zero"
        plain = "not divided by the normalised return, which is missing or nowhere clearly above zero"
        caption = (
            f"Bias: V(s_0) minus the discounted return that followed ({self._bias}). Std and gap: across runs at the "
            f"probe states, {divided if normalised else plain}. A mean is drawn where every run has a number, with one "
            "standard deviation around it."
        )
        return self._figure("study", "The four measures over training", caption, rows, NOT_EVALUATED)

    def _learning(self) -> list[Block]:
        caption = "Mean where every run has a number, one standard deviation around it, and every run, faded."
        return self._figure("learning_curves", "Return", caption, [self._row("return")], NOT_EVALUATED)

    def _mechanism(self) -> list[Block]:
        rows = [self._row(name) for name in MECHANISM]
        caption = "; ".join(f"{METRICS[name].title}: {METRICS[name].meaning}" for name in MECHANISM)
        reason = "it takes probes of an ensemble, of 2 runs or more."
        return self._figure("mechanism", "Correlation of members, and what their mean gains", caption, rows, reason)

    def _diagnosis(self) -> list[Block]:
        cards = tables.diagnosis(self._metrics.table, list(self._styles))
        if not cards:
            return [Block("missing", "no run has recorded the state of its networks (diagnosis.csv).")]
        self._write("diagnosis", pd.concat([card.assign(label=label) for label, card in cards.items()]))
        meanings = [f"{metric.title}: {metric.meaning}" for metric in shown_in("diagnosis") if "<" not in metric.name]
        text = "A card per label: means over runs at the last step. " + "; ".join(meanings)
        blocks = [Block("text", f"{text}. Share of Adam's step: near 0, a layer is starved.")]
        for label, card in cards.items():
            block = table("diagnosis", self._styles[label].name, card, "", ["tables/diagnosis.csv"], folded=False)
            for line in block.lines:
                line["label"] = label  # hidden with it
            blocks.append(block)
        return blocks

    def _truth(self) -> list[Block]:
        rows = [self._row(name) for name in TRUTH]
        caption = (
            "Errors at the probe states against the true Q of the environment, and how much members share them. In "
            "environments that are solved exactly: bias to true Q* = overestimation + policy loss; over runs, "
            "overestimation = Jensen gap + bias of the mean."
        )
        reason = "no environment of these runs knows its true values; env=chain and env=garnet do."
        return self._figure("truth", "Errors against the true Q", caption, rows, reason)

    def _aggregates(self) -> list[Block]:
        scored: list[str] = []
        for label in self._styles:
            with contextlib.suppress(AnalysisError):
                aggregate.collect(self._found, labels=[label])
                scored.append(label)
        if not scored:
            return [Block("missing", "no run has a score, at its end, that can be normalised.")]
        try:
            scores = aggregate.collect(self._found, labels=scored)
        except AnalysisError as error:
            return [Block("missing", f"{error}.")]
        self._notes += scores.notes
        if len(scored) < len(self._styles):
            left_out = ", ".join(label for label in self._styles if label not in scored)
            self._notes.append(f"aggregates are without {left_out}: no score at the end of runs")
        games = ", ".join(f"{env} at step {step:,}" for env, step in scores.steps.items())
        text = f"Normalised returns: {games}. Intervals: 95%, bootstrap over runs, stratified by game."
        numbers = aggregate.aggregates(scores)
        charts = [intervals(numbers[numbers["metric"] == metric], title) for metric, title in _AGGREGATES.items()]
        blocks = self._figure("aggregates", "Aggregates", text, [("", charts)])
        drawn = self._drawn.get("profiles")
        profile = profile_chart(aggregate.profiles(scores) if drawn is None else drawn.data)
        text = "The share of runs, over all games, whose normalised return is above a threshold, with its 95% interval."
        blocks += self._figure("profiles", "Performance profiles", text, [("", [profile])])
        blocks.append(self._table("aggregates", "Aggregates", numbers))
        if len(scored) > 1:
            text = "How likely a run of `label` is above one of `other` in a game, mean over games, with 95% interval."
            frame, files = aggregate.improvements(scores), self._files("improvements")
            blocks.append(self._table("improvements", "Probability of improvement", frame, text, files))
        return blocks

    def _paper(self) -> list[Block]:
        notes: list[str] = []
        blocks = []
        for at, (scores, summed) in tables.beside_the_paper(self._found, notes).items():
            caption = f"Scores after {at} interactions, mean over seeds; the paper's from its table of this horizon."
            blocks.append(self._table(f"paper_{at}", f"Scores at {at}", scores, caption))
            caption = "Human-normalised, over the games of a column; wins and ratio of means over games of both."
            blocks.append(self._table(f"paper_{at}_summary", f"Normalised, at {at}", summed, caption))
        if not blocks:
            reason = "no run has a score at exactly 100,000 or 500,000 steps of a game in the paper's tables."
            return [Block("missing", reason)]
        return [Block("lines", name="notes", lines=notes), *blocks]

    def _cost(self) -> list[Block]:
        caption = "Wall-clock time of training and evaluation as recorded; of unfinished runs, up to now."
        return [self._table("cost", "", tables.cost(self._runs), caption)]

    def _configurations(self) -> list[Block]:
        text = (
            "These commands make the runs again with this version of meanq, below runs/ (add root=DIRECTORY for "
            "another place; runs that are finished there are skipped): the overrides that the runs recorded."
        )
        lines = commands(self._found)
        blocks = [Block("text", text), Block("lines", name="notes", lines=lines)]
        frame = tables.differences(self._groups)
        if len(frame):
            blocks.append(self._table("differences", "Fields that differ between labels", frame, folded=True))
        for (env, label), runs in self._groups.items():
            text = yaml.dump(runs[0].config, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
            blocks.append(Block("source", text, f"{env}, {label}, seed {runs[0].seed}: config.yaml"))
        return blocks

    # --- blocks -----------------------------------------------------------------------------------------------------

    def _row(self, name: str) -> tuple[str, list[Chart]] | None:
        charts = self._charts.draw(METRICS[name])
        return (METRICS[name].title, charts) if charts else None

    def _figure(
        self, name: str, title: str, text: str, rows: Sequence[tuple[str, list[Chart]] | None], reason: str = ""
    ) -> list[Block]:
        """Interactive, with the files of the static figure of the same name."""
        present = [row for row in rows if row is not None]
        if not present:
            return [Block("missing", reason)]
        envs = {chart.env for _, charts in present for chart in charts}
        if len(envs) == 1 and len(present) > 1:  # one game: side by side, under the name of what they show
            side_by_side = [replace(chart, title=title) for title, charts in present for chart in charts]
            present = [(f"{side_by_side[0].env}", side_by_side)]
        return [Block("figure", text, title, name, rows=present, files=self._files(name))]

    def _files(self, name: str) -> list[str]:
        return [f"figures/{name}.{kind}" for kind in ("svg", "png", "csv")] if name in self._drawn else []

    def _table(
        self, name: str, title: str, frame: pd.DataFrame, text: str = "", more: Sequence[str] = (), folded: bool = False
    ) -> Block:
        self._write(name, frame)
        return table(name, title, frame, text, [f"tables/{name}.csv", *more], folded)

    def _write(self, name: str, frame: pd.DataFrame) -> None:
        path = self._directory / "tables" / f"{name}.csv"
        frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
