"""What the report says, section by section. One without data says why."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import yaml

from analysis.aggregate import Scores, aggregates, collect, improvements, profiles
from analysis.figures.catalogue import KINDS as FIGURES
from analysis.figures.catalogue import draw_all
from analysis.figures.curves import PAPERS_READING
from analysis.figures.palette import styles
from analysis.figures.tables import cited_rows, curve_table
from analysis.findings.decide import decide
from analysis.metrics import Metrics, average_steps_to_reference
from analysis.report import tables
from analysis.report.charts import CurveCharts, intervals, profile_chart
from analysis.report.page import (
    Block,
    ChartRow,
    FigureBlock,
    FindingBlock,
    Lines,
    Section,
    Source,
    TableBlock,
    Text,
    picture,
    render,
)
from analysis.results.rerun_commands import Command, commands
from analysis.runs import AnalysisError, RunSet
from meanq.metrics.registry import METRICS, titles_of

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
TRUTH = titles_of("truth")
MECHANISM = [name for name in titles_of("mechanism") if name not in TRUTH]
STUDY = titles_of("study")
NOT_EVALUATED = "no run has been evaluated yet."
_AGGREGATES = {"iqm": "interquartile mean", "optimality_gap": "optimality gap", "mean": "mean", "median": "median"}


def missing(why: str) -> Text:
    """Takes the place of what is not there."""
    return Text(why, "missing")


class Report:
    """The sections of a set of runs."""

    def __init__(self, found: RunSet, metrics: Metrics, bias: str, directory: Path, command: str) -> None:
        self._found, self._metrics, self._bias = found, metrics, bias
        self._directory, self._command = directory, command
        self._styles = styles(found.labels)
        names = ["normalised_return", f"bias_{bias}", *STUDY, *MECHANISM, *TRUTH]
        averaged = [name for name in names if METRICS[name].averaged and name not in MECHANISM]
        table = curve_table(metrics.table, names, averaged)
        self._charts = CurveCharts(table, list(self._styles), cited_rows(found.lengths, found.envs, average=False))
        self._evaluated = any(run.last_evaluation for run in found.runs)
        self._notes = metrics.messages()
        shown = [name for name in FIGURES if name != "series"]  # which has no section
        self._drawings = draw_all(found, metrics, directory / "figures", shown)
        self._drawn = {drawn.name: drawn for drawn in self._drawings.drawn}

    def messages(self) -> list[str]:
        """Every problem and note, once."""
        return list(dict.fromkeys([*self._found.messages(), *self._notes]))

    @property
    def size(self) -> str:
        """In words."""
        found = self._found
        counts = {"run": len(found.runs), "label": len(found.labels), "game": len(found.envs)}
        return ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())

    def sections(self) -> list[Section]:
        """In the order of the page."""
        parts: list[tuple[str, str, Callable[[], list[Block]]]] = [
            ("findings", "The paper's findings", self._findings),
            ("summary", "Summary", self._summary),
            ("study", "Return, bias, standard deviation and Jensen gap", self._study),
            ("curves", "Learning curves", self._learning),
            ("mechanism", "How members differ", self._mechanism),
            ("aggregates", "Aggregates over games", self._aggregates),
            ("paper", "Beside the paper's tables", self._paper),
            ("truth", "Against the true values", self._truth),
            ("probes", "Probe states and undefined ratios", self._probes),
            ("cost", "Cost", self._cost),
            ("configurations", "Configurations", self._configurations),
        ]
        made = [Section(name, title, make()) for name, title, make in parts]
        for section in made:
            for block in section.blocks:
                if isinstance(block, TableBlock):
                    block.frame = self._in_order(block.frame)
        return [Section("runs", "Runs, and what is wrong with them", self._problems()), *made]

    def render(self, sections: Sequence[Section]) -> str:
        """The page."""
        count = Counter(run.state for run in self._found.runs)
        states = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
        subtitle = f"{self.size} ({states}). Made by {self._command}"
        studies = sorted({str(run.config.get("study")) for run in self._found.runs})
        title = f"Report: {', '.join(studies)}"
        return render(title, subtitle, sections, self._styles, self._found.envs, self._command)

    def _in_order(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Labels as in the legend."""
        if "label" not in frame or not len(frame):
            return frame
        rank = {label: i for i, label in enumerate(self._styles)}
        keys = frame.assign(rank=frame["label"].map(rank))
        order = keys.sort_values([*(["game"] if "game" in frame else []), "rank"], kind="stable").index
        return frame.loc[order].reset_index(drop=True)

    def _problems(self) -> list[Block]:
        blocks: list[Block] = []
        wrong = [run for run in self._found.runs if run.state != "finished"]
        skipped = [f"skipped: {problem}" for problem in self._found.problems]
        if not wrong and not skipped and not self._found.notes:
            blocks.append(Text(f"All {len(self._found.runs)} runs are finished, and no directory was skipped."))
        if skipped or self._found.notes:
            failed = [note for note in self._found.notes if ": failed, evaluated" in note]
            others = [note for note in self._found.notes if note not in failed]
            blocks.append(Lines([*failed, *skipped, *others], "problems"))
        for run in wrong:
            if isinstance(run.status.get("traceback"), str):
                blocks.append(Source(f"Traceback of {run.directory}", run.status["traceback"]))
        if self._notes:
            blocks += [Text("About the numbers below:"), Lines(list(dict.fromkeys(self._notes)))]
        blocks.append(TableBlock("runs", "All runs", tables.runs_table(self._found), folded=True))
        return blocks

    def _findings(self) -> list[Block]:
        if not self._evaluated:
            return [missing(NOT_EVALUATED)]
        findings, notes = decide(self._found, self._bias)
        self._notes += notes
        text = (
            "Each conclusion of the paper is supported, refuted or not decidable from these runs, by rules that were "
            "fixed before looking at data (analysis/findings/claims.py). Differences come with 95% intervals."
        )
        blocks: list[Block] = [Text(text)]
        for finding in findings:
            results = [{"text": str(result), "details": result.details} for result in finding.results]
            compared = any(result.difference == result.difference for result in finding.results)
            blocks.append(FindingBlock(finding.name, finding.statement, finding.verdict, results, compared))
        return blocks

    def _summary(self) -> list[Block]:
        if not self._evaluated:
            return [missing(NOT_EVALUATED)]
        caption = (
            "At the last evaluation that any run of the label has; `runs at step`: how many have it. Means over these. "
            "AUC is the mean height of the learning curve, normalised where there are scores to normalise by. Steps to "
            "reference (normalised return 1): empty unless every run gets there. Norm. std and gap: at the last probe "
            "where they are defined, over groups of up to 5 runs."
        )
        frame = tables.at_the_end(self._found, self._metrics, self._bias)
        blocks: list[Block] = [TableBlock("summary", "", frame, caption, behind={"metrics": self._metrics.table})]
        scored = [env for env in self._found.envs if all(run.scores for run in self._found.runs if run.env == env)]
        if len(scored) > 1:
            rows = []
            for label in self._styles:
                reached = average_steps_to_reference(self._found, label, scored)
                got = [step for step in reached.values() if step == step]
                rows.append((label, len(reached), len(got), *(pd.Series(got, dtype=float).agg(["mean", "std"]))))
            frame = pd.DataFrame(rows, columns=["label", "seeds", "that get there", "steps, mean", "± std"])
            what = f"The first evaluation at which the mean normalised return over {len(scored)} games is 1 or more"
            if frame["that get there"].any():
                blocks.append(TableBlock("steps_to_reference", "Steps to an average of 1", frame, f"{what}, by seed."))
            else:
                blocks.append(missing(f"{what[0].lower()}{what[1:]}: no seed of any label gets there."))
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
        rows = [self._row("return")]
        blocks = self._figure("learning_curves", "Return", caption, rows, NOT_EVALUATED)
        drawn = self._drawn.get("ablation")
        if drawn is None:
            return [*blocks, missing(f"{FIGURES['ablation'].title}: {self._drawings.missing['ablation']}.")]
        rows = [self._row("return", labels=set(drawn.data["algo"]))]
        return [*blocks, *self._figure("ablation", drawn.title, f"{caption} {PAPERS_READING}", rows, "")]

    def _mechanism(self) -> list[Block]:
        rows = [self._row(name) for name in MECHANISM]
        caption = "; ".join(f"{METRICS[name].title}: {METRICS[name].meaning}" for name in MECHANISM)
        reason = "it takes probes of an ensemble, of 2 runs or more."
        return self._figure("mechanism", "Correlation of members, and what their mean gains", caption, rows, reason)

    def _truth(self) -> list[Block]:
        rows = [self._row(name) for name in TRUTH]
        caption = (
            "Errors at the probe states against the true Q of the environment, and how much of them members share."
        )
        reason = "no environment of these runs knows its true values; the chain does (env=chain)."
        return self._figure("truth", "Errors against the true Q", caption, rows, reason)

    def _aggregates(self) -> list[Block]:
        try:
            scores = self._scores()
        except AnalysisError as error:
            return [missing(f"{error}.")]
        self._notes += scores.notes
        return [*self._aggregate_blocks(scores), *self._improvement_blocks(scores)]

    def _scores(self) -> Scores:
        """Of all labels; where no game has them all, of those that the game with the most of them has."""
        try:
            return collect(self._found, labels=list(self._styles))
        except AnalysisError:
            by_env: dict[str, list[str]] = {}
            for label in self._styles:
                with contextlib.suppress(AnalysisError):
                    for env in collect(self._found, labels=[label]).envs:
                        by_env.setdefault(env, []).append(label)
            if not by_env:
                raise AnalysisError("no run has a score, at its end, that can be normalised") from None
            chosen = max(by_env.values(), key=len)
            scores = collect(self._found, labels=chosen)
            left_out = ", ".join(label for label in self._styles if label not in chosen)
            scores.notes.append(f"aggregates are without {left_out}: no score at the end of runs in {scores.envs[0]}")
            return scores

    def _aggregate_blocks(self, scores: Scores) -> list[Block]:
        games = ", ".join(f"{env} at step {step:,}" for env, step in scores.steps.items())
        text = f"Normalised returns: {games}. Intervals: 95%, bootstrap over runs, stratified by game."
        table = aggregates(scores)
        charts = [intervals(table[table["metric"] == metric], title) for metric, title in _AGGREGATES.items()]
        rows = [ChartRow("", charts)]
        made = self._figure("aggregates", "Aggregates", text, rows, "")
        drawn = self._drawn.get("profiles")
        profile = profiles(scores) if drawn is None else drawn.data
        caption = (
            "The share of runs, over all games, whose normalised return is above a threshold, with its 95% interval."
        )
        rows = [ChartRow("", [profile_chart(profile)])]
        made += self._figure("profiles", "Performance profiles", caption, rows, "")
        return [*made, TableBlock("aggregates", "Aggregates", table)]

    def _improvement_blocks(self, scores: Scores) -> list[Block]:
        if len(scores.matrices) < 2:
            return [missing("probability of improvement, because there is one label only.")]
        caption = (
            "How likely a run of `label` is above one of `other` in the same game, mean over games, with 95% interval."
        )
        blocks: list[Block] = [TableBlock("improvements", "Probability of improvement", improvements(scores), caption)]
        if "improvements" in self._drawn:
            drawn = self._drawn["improvements"]
            image = picture(self._directory / "figures" / "improvements.svg")
            files, made = self._files("improvements"), self._commands(scores.envs)
            blocks.append(FigureBlock("improvements", drawn.title, drawn.caption, [], made, files, image))
        return blocks

    def _paper(self) -> list[Block]:
        notes: list[str] = []
        blocks: list[Block] = []
        for at, (scores, summed) in tables.beside_the_paper(self._found, notes).items():
            caption = f"Scores after {at} interactions, mean over seeds; the paper's from its table of this horizon."
            blocks.append(TableBlock(f"paper_{at}", f"Scores at {at}", scores, caption))
            caption = (
                "Human-normalised, over the games above that a column has; wins and ratio of means over games of both."
            )
            blocks.append(TableBlock(f"paper_{at}_summary", f"Normalised, at {at}", summed, caption))
        if blocks and notes:
            blocks.insert(0, Lines(notes))
        return blocks or [
            missing("no run has a score at exactly 100,000 or 500,000 steps of a game in the paper's tables.")
        ]

    def _probes(self) -> list[Block]:
        blocks: list[Block] = []
        states = tables.probe_states(self._found)
        if len(states):
            caption = (
                "States with equal Q in every run at every probe coincide: resets do not always differ. Means over "
                "states give such a state its weight among resets."
            )
            blocks.append(TableBlock("probe_states", "Probe states", states, caption))
        else:
            blocks.append(missing("probe states, because no run has been probed."))
        ratios = tables.undefined_ratios(self._metrics)
        if len(ratios) and not ratios["empty"].any():
            blocks.append(Text(f"All {self._metrics.ratios} ratios to normalised performance are defined."))
        elif len(ratios):
            caption = (
                f"{self._metrics.undefined} of {self._metrics.ratios} ratios of std or gap to normalised performance "
                "are undefined, because that performance is not clearly above zero; "
                f"{self._metrics.unevaluated} are not known, because a run has no evaluation at the probe's step. They "
                "are left empty and not drawn."
            )
            blocks.append(TableBlock("undefined_ratios", "Undefined ratios", ratios, caption))
        else:
            why = "ratios to normalised performance: they take 2 probed runs of a label, and scores to normalise by."
            blocks.append(missing(why))
        return blocks

    def _cost(self) -> list[Block]:
        caption = "Wall-clock time of training and evaluation as recorded; of unfinished runs, up to now."
        return [TableBlock("cost", "", tables.cost(self._found), caption)]

    def _configurations(self) -> list[Block]:
        blocks: list[Block] = [
            Text(
                "These commands make the runs again with this version of meanq, below runs/ (add root=DIRECTORY for "
                "another place; runs that are finished there are skipped). They repeat the overrides that the runs "
                "recorded."
            ),
            Lines([made.text for made in self._made], "notes"),
        ]
        for env in self._found.envs:
            frame = tables.differences(self._found, env)
            if len(frame):
                name = f"differences_{env}" if env.replace("_", "").isalnum() else ""
                blocks.append(TableBlock(name, f"Fields that differ between labels: {env}", frame, folded=True))
        for (env, label), runs in self._found.groups().items():
            text = yaml.dump(runs[0].config, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
            blocks.append(Source(f"{env}, {label}, seed {runs[0].seed}: config.yaml", text))
        return blocks

    def _row(self, name: str, labels: Iterable[str] | None = None) -> ChartRow | None:
        charts = self._charts.draw(METRICS[name], labels)
        return ChartRow(METRICS[name].title, charts) if charts else None

    def _figure(self, name: str, title: str, caption: str, rows: Sequence[ChartRow | None], reason: str) -> list[Block]:
        """Interactive, with the files of the static figure of the same name."""
        present = [row for row in rows if row is not None]
        if not present:
            return [missing(reason)]
        envs = {chart.env for row in present for chart in row.charts}
        if len(envs) == 1 and len(present) > 1:  # one game: side by side, under the name of what they show
            charts = [replace(chart, title=row.title) for row in present for chart in row.charts]
            present = [ChartRow(f"{charts[0].env}", charts)]
        made = self._commands([env for env in envs if env] or self._found.envs)
        return [FigureBlock(name, title, caption, present, made, self._files(name))]

    def _files(self, name: str) -> list[str]:
        return [f"figures/{name}.{kind}" for kind in ("svg", "png", "csv")] if name in self._drawn else []

    @cached_property
    def _made(self) -> list[Command]:
        return commands(self._found)

    def _commands(self, envs: Sequence[str]) -> list[str]:
        return [made.text for made in self._made if set(made.envs) & set(envs)]
