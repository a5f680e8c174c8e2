"""What the report says, section by section: what the user trained first, the paper's conclusions later.

A section without data is a line at the end that says why. Tables and figures are also files beside the page.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from meanq.metrics.registry import METRICS, shown_in, titles_of

from .. import aggregate
from ..figures.catalogue import draw_all
from ..figures.palette import styles
from ..figures.tables import cited_rows, curve_table, game_name, need, shown_spreads
from ..findings.claims import UNDECIDED
from ..findings.decide import decide
from ..labels import say_shared
from ..late import late_table
from ..metrics import Metrics
from ..notes import all_notes
from ..results.provenance import commands
from ..runs import AnalysisError, RunSet
from . import tables
from .charts import Chart, CurveCharts, intervals, profile_chart
from .page import Block, Notes, Section, render, table

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
        self._spreads = shown_spreads(curves)
        self._charts = CurveCharts(curves, list(self._styles), cited_rows(found.lengths, found.envs, average=False))
        self._evaluated = any(run.last_evaluation for run in found.runs)
        self._notes = list(metrics.notes)
        self._runs = tables.runs_table(self._groups)
        drawn, _ = draw_all(found, metrics, directory / "figures")
        self._linked: set[str] = set()  # figures with a place on the page
        self._drawn = {figure.name: figure for figure in drawn}
        (directory / "tables").mkdir(parents=True, exist_ok=True)

    def messages(self) -> list[str]:
        """Every problem and note, once."""
        return all_notes(self._found, self._notes)

    @property
    def size(self) -> str:
        """In words."""
        found = self._found
        counts = {"run": len(found.runs), "label": len(found.labels), "game": len(found.envs)}
        return ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())

    def page(self) -> str:
        """The page as HTML, with its tables and figures written beside it."""
        parts: list[tuple[str, str, Callable[[], list[Block]]]] = [
            ("summary", "Summary", self._summary),
            ("curves", "Learning curves", self._learning),
            ("study", "Return, bias, standard deviation and Jensen gap", self._study),
            ("mechanism", "How members differ", self._mechanism),
            ("diagnosis", "State of the networks", self._diagnosis),
            ("truth", "Against the true values", self._truth),
            ("aggregates", "Aggregates over games", self._aggregates),
            ("findings", "The paper's conclusions", self._findings),
            ("paper", "Beside the paper's tables", self._paper),
            ("cost", "Cost", self._cost),
            ("runs", "Runs", self._all_runs),
            ("configurations", "Configurations", self._configurations),
        ]
        sections, missing = [], []
        for name, title, make in parts:
            try:
                sections.append(Section(name, title, make()))
            except AnalysisError as reason:
                missing.append(f"{title}: {reason}")
        others = [figure for name, figure in self._drawn.items() if name not in self._linked]
        if others:
            links = [Block("files", figure.title, files=self._files(figure.name)) for figure in others]
            sections.insert(-3, Section("figures", "More figures", links))
        if missing:
            lines = Block("lines", name="notes", lines=missing)
            titles = ", ".join(line.partition(":")[0] for line in missing)
            sections[-1].blocks.append(Block("folded", title=f"Not in this report: {titles}", lines=[lines]))
        count = Counter(run.state for run in self._found.runs)
        states = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
        title = f"Report: {', '.join(sorted({run.config['study'] for run in self._found.runs}))}"
        shared = f" {say_shared(self._found.labels)}".rstrip()
        subtitle = f"{self.size} ({states}).{shared} Made by {self._command}"
        games = {env: game_name(env) for env in self._found.envs}
        return render(title, subtitle, self._notes_block(), sections, self._styles, games)

    # --- sections ---------------------------------------------------------------------------------------------------

    def _notes_block(self) -> Notes:
        """Notes about the runs and the numbers, those about failed runs first."""
        failures = sum(run.state == "failed" for run in self._found.runs)
        shared = say_shared(self._found.labels)  # said above
        messages = [message for message in self.messages() if not (shared and message.startswith(shared))]
        messages.sort(key=lambda message: ": failed, evaluated" not in message)
        counts = {"failed run": failures, "skipped directory": len(self._found.problems), "note": len(messages)}
        plural = {"skipped directory": "skipped directories"}
        said = [f"{n} {name if n == 1 else plural.get(name, f'{name}s')}" for name, n in counts.items() if n]
        blocks = [Block("lines", name="problems", lines=messages)] if messages else []
        for run in self._found.runs:
            if run.state != "finished" and isinstance(run.status.get("traceback"), str):
                blocks.append(Block("source", run.status["traceback"], f"Traceback of {run.directory}"))
        return Notes(f"About these runs: {', '.join(said)}" if said else "", blocks, failures > 0)

    def _all_runs(self) -> list[Block]:
        return [self._table("runs", "All runs", self._runs, folded=True)]

    def _findings(self) -> list[Block]:
        need(self._evaluated, NOT_EVALUATED)
        findings, notes = decide(self._found, self._bias)
        self._notes += notes
        text = (
            "Each conclusion of the paper is supported, refuted or not decidable from these runs, by rules that were "
            "fixed before looking at data (analysis/findings/claims.py). Differences come with 95% intervals."
        )
        decided: list[Block] = []
        others: list[Block] = []
        for finding in findings:
            lines = [{"text": str(result), "details": result.details} for result in finding.results]
            block = Block("finding", finding.statement, finding.verdict, finding.name, lines=lines)
            (others if finding.verdict == UNDECIDED else decided).append(block)
        blocks = [Block("text", text), *decided] if decided else []
        if others:
            named = ", ".join(block.name for block in others)
            summary = f"Not decidable from these runs: {named}, and why"
            blocks.append(Block("folded", title=summary, lines=others if decided else [Block("text", text), *others]))
        return blocks

    def _summary(self) -> list[Block]:
        need(self._evaluated, NOT_EVALUATED)
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
        if steps["that get there"].any():
            caption = "The first evaluation of a seed at which the mean normalised return over games is 1 or more."
            blocks.append(self._table("steps_to_reference", "Steps to an average of 1", steps, caption))
        return blocks

    def _study(self) -> list[Block]:
        rows = [self._row(name) for name in ("return", f"bias_{self._bias}", *self._spreads)]
        normalised = "normalised_std" in self._spreads
        divided = "divided by the normalised return; not drawn where that is not clearly above zero"
        plain = "not divided by the normalised return, which is missing or nowhere clearly above zero"
        caption = (
            f"Bias: V(s_0) minus the discounted return that followed ({self._bias}). Std and gap: across runs at the "
            f"probe states, {divided if normalised else plain}; logarithmic where all are positive. A mean is drawn "
            "where every run has a number, with one standard deviation around it where at most 8 labels are shown. A "
            "tick that says log: the axis is logarithmic beyond, so that every curve is seen."
        )
        return self._figure("study", "The four measures over training", caption, rows, NOT_EVALUATED)

    def _learning(self) -> list[Block]:
        caption = (
            "Mean where every run has a number; where at most 8 labels are shown, one standard deviation around it and "
            "every run, faded."
        )
        row = self._row("return")
        return self._figure("learning_curves", "Return", caption, [("", row[1]) if row else None], NOT_EVALUATED)

    def _mechanism(self) -> list[Block]:
        rows = [self._row(name) for name in MECHANISM]
        caption = "; ".join(f"{METRICS[name].title}: {METRICS[name].meaning}" for name in MECHANISM)
        reason = "it takes probes of an ensemble, of 2 runs or more."
        return self._figure("mechanism", "Correlation of members, and what their mean gains", caption, rows, reason)

    def _diagnosis(self) -> list[Block]:
        cards = tables.diagnosis(self._metrics.table, list(self._styles))
        need(bool(cards), "no run has recorded the state of its networks (diagnosis.csv).")
        self._write("diagnosis", pd.concat([card.assign(label=label) for label, card in cards.items()]))
        meanings = [f"{metric.title}: {metric.meaning}" for metric in shown_in("diagnosis") if "<" not in metric.name]
        text = "A card per label: means over runs at the last step. " + "; ".join(meanings)
        blocks = [Block("text", f"{text}. Share of Adam's step: near 0, a layer is starved.")]
        for label, card in cards.items():
            block = table("diagnosis", self._styles[label].name, card, "", ["tables/diagnosis.csv"])
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
        need(bool(scored), "no run has a score, at its end, that can be normalised.")
        scores = aggregate.collect(self._found, labels=scored)
        self._notes += scores.notes
        if len(scored) < len(self._styles):
            left_out = ", ".join(label for label in self._styles if label not in scored)
            self._notes.append(f"aggregates are without {left_out}: no score at the end of runs")
        steps = sorted(set(scores.steps.values()))
        games = f"{len(scores.envs)} game{'s' * (len(scores.envs) > 1)} at step"
        games += f" {steps[0]:,}" + f" to {steps[-1]:,}" * (len(steps) > 1)
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
        need(bool(blocks), "no run has a score at exactly 100,000 or 500,000 steps of a game in the paper's tables.")
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
        need(bool(present), reason)
        envs = {chart.env for _, charts in present for chart in charts}
        if len(envs) == 1 and len(present) > 1:  # one game: side by side, under the name of what they show
            side_by_side = [replace(chart, title=title) for title, charts in present for chart in charts]
            present = [(game_name(f"{side_by_side[0].env}"), side_by_side)]
        return [Block("figure", text, title, name, rows=present, files=self._files(name))]

    def _files(self, name: str) -> list[str]:
        self._linked.add(name)
        return [f"figures/{name}.{kind}" for kind in ("svg", "png", "csv")] if name in self._drawn else []

    def _table(
        self, name: str, title: str, frame: pd.DataFrame, text: str = "", more: Sequence[str] = (), folded: bool = False
    ) -> Block:
        self._write(name, frame)
        names = {label: style.name for label, style in self._styles.items()}
        return table(name, title, frame, text, [f"tables/{name}.csv", *more], folded, names)

    def _write(self, name: str, frame: pd.DataFrame) -> None:
        path = self._directory / "tables" / f"{name}.csv"
        frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
