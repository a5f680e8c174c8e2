"""The README.md of kept results, from their provenance, tables and figures."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from meanq.metrics.registry import shown_in

from ..figures import errors
from ..figures.catalogue import Drawn
from ..figures.tables import game_name
from ..findings.claims import HIGHER, LOWER, NOT_TOLD_APART, UNDECIDED
from ..labels import readable_names, say_shared

LATE_CAPTION = (
    "Means over the last quarter of training and over runs with 95% intervals (Student's; of members the jackknife's). "
    "Bias: V(s0) minus the discounted return that followed. Std and gap over runs are divided by the normalised "
    "return; correlation and effective size of members are from all runs at once."
)
FINDINGS_CAPTION = (
    "Differences late in training with 95% intervals, by the rules in `analysis/findings/claims.py`. Those of bias, "
    "std and gap are (A - B) / (A + B), that of correlation c is one of log(1 + K c / (1 - c))."
)
PAIRS_CAPTION = (
    "Methods that differ in one field alone, with and without what it switches, late in training, by the rules of "
    "`meanq findings --compare` (95% intervals, each by itself). Differences of return are of normalised returns, "
    "without minus with, those of |bias|, std and gap (A - B) / (A + B). In environments that are solved exactly, "
    "return and bias are exact: the greedy policy's share of the optimal value, and overestimation."
)
# As in analysis.findings.pairs, each with the words for higher, lower and not told apart.
QUESTIONS = {
    "return": ("Who does without it?", "gains return", "loses return", "no difference in return is seen"),
    "bias": ("At what price in bias?", "more biased", "less biased", "no difference in bias is seen"),
    "std": ("Is it variance that is reduced?", "higher std", "lower std", "no difference in std is seen"),
    "gap": ("And the Jensen gap?", "higher gap", "lower gap", "no difference in the gap is seen"),
    "mean_return": ("Is an ensemble's mean needed?", "higher return", "lower return", "no difference is seen"),
    "mean_bias": ("And for its bias?", "more biased", "less biased", "no difference in bias is seen"),
}
ASKED = {"question": "Question", "paper": "The paper", "refuted_by": "Refuted by"}
COUNTED = {"machine": "machines", "threads of a run": "threads", "device": "devices"}
WRITTEN_BY = "Written by `python -m analysis.results`; `provenance.json` and `tables/` have it in full."


def page(about: Mapping[str, Any], frames: Mapping[str, pd.DataFrame], drawn: Sequence[Drawn]) -> str:
    """The page in Markdown."""
    parts = [f"# {about['study']}", *_asked(about), *_made_by(about)]
    for figure in drawn:
        parts += [f"## {figure.title}", f"![{figure.title}](figures/{figure.name}.svg)", figure.caption]
        if figure.name == "errors":
            parts.append(_markdown(_errors_as_text(figure.data)))
    shared = say_shared(frames["late"]["label"])
    parts += ["## Late in training", f"{LATE_CAPTION} {shared}".strip(), _markdown(late_as_text(frames["late"]))]
    if "pairs" in frames:
        parts += ["## With and without", PAIRS_CAPTION, *_answers(frames["pairs"])]
    if "findings" in frames:
        parts += ["## What the paper concludes", FINDINGS_CAPTION, *_verdicts(frames["findings"])]
    if "scores" in frames:
        parts += ["## Beside the paper's scores", f"{about['scores']}.", _markdown(_scores_as_text(frames["scores"]))]
    if about["notes"]:
        parts += ["## What has to be known", "\n".join(f"- {note}" for note in about["notes"])]
    return "\n\n".join([*parts, WRITTEN_BY]) + "\n"


def _asked(about: Mapping[str, Any]) -> list[str]:
    """Question, paper and refutation, as far as the study has them."""
    from meanq.launching.study import load_study, study_names

    texts = about.get("study_texts", {})
    if "study_file" not in about and about["study"] in study_names():
        texts = load_study(about["study"]).texts
    return ["\n".join(f"- {ASKED[name]}: {text}" for name, text in texts.items())] if texts else []


def _made_by(about: Mapping[str, Any]) -> list[str]:
    """The command of the study, a table of circumstances, and the commands of the runs."""
    parts, others = [], about.get("not_of_scale", [])
    runs, kind = f"{about['runs'] - len(others)}", "scale" if about.get("scale") else "study"
    if "scale" in about:
        scale = f" SCALE={about['scale']}" if about["scale"] else ""
        study = shlex.quote(about.get("study_file", about["study"]))
        parts.append(f"```bash\nmake reproduce STUDY={study}{scale}\n```")
        runs += f" of the {about['runs_of_scale']} of this {kind}"
    if others:
        runs += f", and {len(others)} that are none of it"
    if about["finished"] < about["runs"]:
        runs += f", {about['finished']} finished"
    facts = {
        "runs": f"{runs}; {about['interactions']:,} interactions",
        "hours": f"{about['hours']:g}, summed over runs",
    }
    if about["copied"]:
        listed = "; ".join(f"{count} of {name}" for name, count in about["copied"].items())
        facts["copied from other studies"] = f"{listed} (the same runs; their hours are in both)"
    facts |= {name: _counted(about[key], about["runs"]) for name, key in COUNTED.items()}
    versions = (f"{name} {_counted(found, about['runs'])}" for name, found in about["versions"].items())
    facts |= {"versions": ", ".join(versions), "commit": _counted(about["commits"], about["runs"])}
    parts.append("\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in facts.items())]))
    if others:
        parts += [f"Runs that are none of this {kind}:", "\n".join(f"- {run}" for run in others)]
    listed = "\n".join(about["commands"])
    parts.append(f"<details><summary>The same runs, label by label</summary>\n\n```text\n{listed}\n```\n\n</details>")
    return parts


def _counted(found: Mapping[str, int], runs: int) -> str:
    parts = [f"{text} ({n} run{'s' * (n > 1)})" if n < runs else text for text, n in found.items()]
    return ", ".join(parts) or "not recorded"


def late_as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers with intervals, without empty columns."""
    shown = _rows(table, "step", "runs")
    for metric in shown_in("late"):
        shown[metric.column] = _with_intervals(table, metric.column, metric.form)
    return shown.loc[:, (shown != "").any()]


def _errors_as_text(table: pd.DataFrame) -> pd.DataFrame:
    shown = _rows(table.rename(columns={"env": "game"}), "step", "n")
    for metric in errors.SHOWN:
        shown[metric.column] = _with_intervals(table, metric.column, "{:+.2f}")
    return shown


def _scores_as_text(table: pd.DataFrame) -> pd.DataFrame:
    shown = _rows(table, "interactions", "seeds")
    scores = table[[name for name in table if name not in shown]]
    return pd.concat([shown, scores.map("{:.1f}".format)], axis=1)


def _rows(table: pd.DataFrame, step: str, runs: str) -> pd.DataFrame:
    names = readable_names(table["label"])
    shown = {"game": table["game"].map(game_name), "label": table["label"].map(names)}
    return pd.DataFrame({**shown, "interactions": table[step].map("{:,}".format), runs: table[runs].astype(str)})


def _with_intervals(table: pd.DataFrame, column: str, form: str, ends: tuple[str, str] | None = None) -> list[str]:
    """As 1.50 [1.20, 1.80], or without the interval if it is NaN; empty if the number is NaN."""
    low, high = ends or (f"{column} low", f"{column} high")
    cells = []
    for number, *interval in table.reindex(columns=[column, low, high]).to_numpy(float).tolist():
        between = f" [{', '.join(map(form.format, interval))}]" if interval[0] == interval[0] else ""
        cells.append(form.format(number) + between if number == number else "")
    return cells


def _answers(table: pd.DataFrame) -> list[str]:
    """For each family of games the answers in words, then a table of the comparisons behind them."""
    parts = []
    names = readable_names([*table["method"], *table["label"], *table["against"]])
    for games, part in table.groupby("games", sort=False):
        lines = []
        asked = set(part["question"])
        for key, (question, *words) in QUESTIONS.items():
            if key not in asked:
                continue
            rows = part[(part["question"] == key) & part["difference"].notna()]
            said = [
                f"{word}: {', '.join(names[method] for method in those)}"
                for verdict, word in zip((HIGHER, LOWER, NOT_TOLD_APART), words, strict=True)
                if len(those := rows[rows["verdict"] == verdict]["method"])
            ]
            of_one = bool(said) and key not in ("return", "bias")
            against = f" Against {names[rows['against'].iloc[0]]}, each without it:" if of_one else ""
            lines.append(f"- {question}{against} {'; '.join(said) or 'these runs have nothing to compare'}.")
        differences = _with_intervals(part, "difference", "{:+.3f}", ("low", "high"))
        shown = part.assign(difference=differences).loc[part["difference"].notna()]
        for column in ("label", "against"):
            shown[column] = shown[column].map(names)
        listed = _markdown(shown[["metric", "label", "against", "verdict", "difference"]])
        folded = f"<details><summary>The comparisons</summary>\n\n{listed}\n\n</details>"
        parts += [f"**{game_name(str(games))}**", "\n".join(lines), *([folded] if len(shown) else [])]
    return parts


def _verdicts(table: pd.DataFrame) -> list[str]:
    """Findings with comparisons as tables; the others by name."""
    parts, undecided = [], []
    for name, part in table.groupby("finding", sort=False):
        if part["difference"].isna().all():
            undecided.append(str(name))
            continue
        differences = _with_intervals(part, "difference", "{:+.3f}", ("low", "high"))
        rows = part[["comparison", "verdict"]].assign(difference=differences)
        about = part.iloc[0]
        parts += [f"**{name} {about['finding_verdict']}**: {about['statement']}", _markdown(rows)]
    if undecided:
        parts.append(f"{UNDECIDED.capitalize()}, because these runs have nothing to compare: {', '.join(undecided)}.")
    return parts


def _markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(_cell(str(cell)) for cell in row)} |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
