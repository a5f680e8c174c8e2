"""The README.md of kept results, from their provenance, tables and figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.figures.catalogue import Drawn
from analysis.figures.palette import readable_names
from analysis.figures.tables import game_name
from analysis.findings.claims import UNDECIDED
from meanq.metrics.registry import shown_in

LATE_CAPTION = (
    "Means over the last quarter of training and over runs with 95% intervals (Student's; of members the jackknife's). "
    "Bias: V(s0) minus the discounted return that followed. Std and gap over runs are divided by the normalised "
    "return; correlation and effective size of members are from all runs at once."
)
FINDINGS_CAPTION = (
    "Differences late in training with 95% intervals, by the rules in `analysis/findings/claims.py`. Those of bias, "
    "std and gap are (A - B) / (A + B), that of correlation c is one of log(1 + K c / (1 - c))."
)
COUNTED = {"machine": "machines", "threads of a run": "threads", "device": "devices"}
WRITTEN_BY = "Written by `python -m analysis.results`; `provenance.json` and `tables/` have it in full."


def page(about: Mapping[str, Any], frames: Mapping[str, pd.DataFrame], drawn: Sequence[Drawn]) -> str:
    """The page in Markdown."""
    parts = [f"# {about['study']}", *_asked(about), *_made_by(about)]
    for figure in drawn:
        parts += [f"## {figure.title}", f"![{figure.title}](figures/{figure.name}.svg)", figure.caption]
    parts += ["## Late in training", LATE_CAPTION, _markdown(late_as_text(frames["late"]))]
    if "findings" in frames:
        parts += ["## What the paper concludes", FINDINGS_CAPTION, *_verdicts(frames["findings"])]
    if "scores" in frames:
        parts += ["## Beside the paper's scores", f"{about['scores']}.", _markdown(_scores_as_text(frames["scores"]))]
    if about["notes"]:
        parts += ["## What has to be known", "\n".join(f"- {note}" for note in about["notes"])]
    return "\n\n".join([*parts, WRITTEN_BY]) + "\n"


def _asked(about: Mapping[str, Any]) -> list[str]:
    """Question, paper and refutation of the study, if it is in ablations/."""
    from meanq.launching.study import load_study, study_names

    if about["study"] not in study_names():
        return []
    study = load_study(about["study"])
    words = (("Question", study.question), ("The paper", study.paper), ("Refuted by", study.refuted_by))
    return ["\n".join(f"- {name}: {text}" for name, text in words)]


def _made_by(about: Mapping[str, Any]) -> list[str]:
    """The command of the study, a table of circumstances, and the commands of the runs."""
    parts, others = [], about.get("not_of_scale", [])
    runs = f"{about['runs'] - len(others)}"
    if "scale" in about:
        parts.append(f"```bash\nmake reproduce STUDY={about['study']} SCALE={about['scale']}\n```")
        runs += f" of the {about['runs_of_scale']} of this scale"
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
        parts += ["Runs that are none of this scale:", "\n".join(f"- {run}" for run in others)]
    listed = "\n".join(about["commands"])
    parts.append(f"<details><summary>The same runs, label by label</summary>\n\n```text\n{listed}\n```\n\n</details>")
    return parts


def _counted(found: Mapping[str, int], runs: int) -> str:
    parts = [f"{text} ({n} run{'s' * (n > 1)})" if n < runs else text for text, n in found.items()]
    return ", ".join(parts) or "not recorded"


def late_as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers with intervals, without empty columns."""
    shown = _rows(table)
    shown["interactions"] = [f"{step:,}" for step in table["step"]]
    shown["runs"] = table["runs"].astype(str)
    nowhere = pd.Series(float("nan"), index=table.index)
    for metric in shown_in("late"):
        number, low, high = (table.get(f"{metric.column}{end}", nowhere) for end in ("", " low", " high"))
        shown[metric.column] = [with_interval(*cell, metric.form) for cell in zip(number, low, high, strict=True)]
    return shown.loc[:, [any(cell != "" for cell in shown[name]) for name in shown]]


def with_interval(number: float, low: float, high: float, form: str) -> str:
    """Format as 1.50 [1.20, 1.80], or without the interval if it is NaN; empty if the number is NaN."""
    if number != number:
        return ""
    return form.format(number) + (f" [{form.format(low)}, {form.format(high)}]" if low == low else "")


def _verdicts(table: pd.DataFrame) -> list[str]:
    """Findings with comparisons as tables; the others by name."""
    parts, undecided = [], []
    for name, part in table.groupby("finding", sort=False):
        verdict, statement = part["finding_verdict"].iloc[0], part["statement"].iloc[0]
        if part["difference"].isna().all():
            undecided.append(str(name))
            continue
        rows = pd.DataFrame({"comparison": part["comparison"], "verdict": part["verdict"]})
        numbers = zip(part["difference"], part["low"], part["high"], strict=True)
        rows["difference"] = [with_interval(*number, "{:+.3f}") for number in numbers]
        parts += [f"**{name} {verdict}**: {statement}", _markdown(rows)]
    if undecided:
        parts.append(f"{UNDECIDED.capitalize()}, because these runs have nothing to compare: {', '.join(undecided)}.")
    return parts


def _rows(table: pd.DataFrame) -> pd.DataFrame:
    names = readable_names(table["label"])
    return pd.DataFrame({"game": table["game"].map(game_name), "label": table["label"].map(names)})


def _scores_as_text(table: pd.DataFrame) -> pd.DataFrame:
    shown = _rows(table)
    shown["interactions"] = [f"{step:,}" for step in table["interactions"]]
    shown["seeds"] = table["seeds"].astype(str)
    for name in ("ours", *(name for name in table if str(name).startswith("paper: "))):
        shown[name] = [f"{score:.1f}" for score in table[name]]
    return shown


def _markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(_cell(str(cell)) for cell in row)} |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
