"""Where kept results come from: what their runs recorded about themselves, and nothing else.

No names of hosts and no paths: what is kept is published. A circumstance that no run recorded is not mentioned.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from analysis.results.rerun_commands import commands
from analysis.runs import AnalysisError, Run, RunSet
from meanq.config.fields import ABSENT, field_value, flatten, is_compared

NOT_RECORDED = "not recorded"


def provenance(found: RunSet, paths: Sequence[Path], scale: str | None, notes: Iterable[str]) -> dict[str, Any]:
    """As JSON. `scale`: that of the study whose runs these are, which is checked; `notes`: beside those of the runs."""
    names = sorted({str(run.config.get("study")) for run in found.runs})
    if scale is not None and len(names) > 1:
        raise AnalysisError(f"scale {scale}: these are runs of several studies ({', '.join(names)}); name none")
    study = {"scale": scale, **_of_scale(found, names[0], scale)} if scale is not None else {}
    return {
        "study": ", ".join(names),
        **study,
        "runs": len(found.runs),
        "finished": sum(run.state == "finished" for run in found.runs),
        "interactions": sum(_reached(run) for run in found.runs),
        "hours": round(sum(run.seconds for run in found.runs if run.seconds == run.seconds) / 3600, 2),
        "untimed": sum(run.seconds != run.seconds for run in found.runs),
        "copied": _count(run.meta["copied_from"] for run in found.runs if "copied_from" in run.meta),
        "commits": _count(_commits(run.meta) for run in found.runs),
        "machines": _count(_machine(run.meta) for run in found.runs),
        "threads": _count(run.meta.get("threads") for run in found.runs),
        "devices": _count(run.meta.get("device") for run in found.runs),
        "versions": _versions(found.runs),
        "commands": [made.text for made in commands(found)],
        "notes": [without_paths(paths, note) for note in (*found.messages(), *notes)],
    }


def _of_scale(found: RunSet, name: str, scale: str) -> dict[str, Any]:
    """How many runs this scale of the study has, and which of the runs at hand are none of them."""
    wanted = _planned(name, scale)
    others = []
    for run in found.runs:
        config = wanted.get((run.env, run.config["label"], run.seed))
        if config is None:
            others.append(f"{run.env}, {run.label}, seed {run.seed}")
        elif different := _different(run.config, config):
            others.append(f"{run.env}, {run.label}, seed {run.seed} ({', '.join(different)})")
    return {"runs_of_scale": len(wanted), "not_of_scale": others}


@cache
def _planned(name: str, scale: str) -> dict[tuple[str, str | None, int], dict[str, Any]]:
    """The configurations of a study's scale, by environment, label and seed. Composing them takes seconds."""
    from meanq.config.errors import ConfigError
    from meanq.launching.plan import hydra_arguments, plan, register_schema

    register_schema()
    try:
        with tempfile.TemporaryDirectory() as nowhere:  # so that the directories of other runs are not looked at
            planned = plan(hydra_arguments(["-m", f"+study={name}", f"scale={scale}", f"root={nowhere}"]))
    except ConfigError as error:
        raise AnalysisError(str(error)) from None
    assert planned is not None
    return {(config.env.name, config.label, config.seed): asdict(config) for config in planned.configs}


def _different(recorded: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Fields that matter and were recorded with another value; what is no field any more is not looked at."""
    theirs, ours = flatten(recorded), flatten(planned)
    return [
        f"{name}={field_value(theirs, name)}"
        for name in sorted(ours)
        if is_compared(name) and field_value(theirs, name) not in (ours[name], ABSENT)
    ]


def _reached(run: Run) -> int:
    return int(run.status["step"]) if isinstance(run.status.get("step"), int) else run.last_evaluation


def _commits(meta: Mapping[str, Any]) -> str | None:
    """The commit of a run; of one that another commit went on with, all of them."""
    earlier = [part["commit"] for part in meta.get("earlier", []) if "commit" in part]
    return ", then ".join(map(str, [*earlier, meta["commit"]])) if "commit" in meta else None


def _machine(meta: Mapping[str, Any]) -> str | None:
    cpu, cores = meta.get("cpu"), meta.get("cores")
    return f"{cpu}, {cores} cores" if cpu and cores else None


def _versions(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    recorded = []
    for run in runs:
        packages = run.meta.get("versions")
        recorded.append({"python": run.meta.get("python"), **(packages if isinstance(packages, dict) else {})})
    names = sorted({name for versions in recorded for name in versions})
    return {name: found for name in names if (found := _count(versions.get(name) for versions in recorded))}


def _count(values: Iterable[Any]) -> dict[str, int]:
    """How many runs recorded what, most often first; NOT_RECORDED: the rest, where some did."""
    counted = Counter(NOT_RECORDED if value is None else str(value) for value in values)
    return {} if set(counted) <= {NOT_RECORDED} else _sorted(counted)


def _sorted(counted: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def without_paths(paths: Sequence[Path], text: str) -> str:
    """Directories as they are called below the given paths, others by their last part."""
    for path in sorted(map(str, paths), key=len, reverse=True):
        text = text.replace(f"{path}/", "")
    return re.sub(r"(?<![\w.~])[~.]{0,2}/(?:[^\s/'\":;,()]+/)*([^\s/'\":;,()]+)", r"\1", text)
