"""Where kept results come from, as the runs recorded it.

Kept results are published, so there are no host names and no paths.
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
from analysis.runs import AnalysisError, Run, RunSet, differing_fields
from meanq.config.fields import ABSENT, field_value, flatten

NOT_RECORDED = "not recorded"


def provenance(found: RunSet, paths: Sequence[Path], scale: str | None, notes: Iterable[str]) -> dict[str, Any]:
    """The content of provenance.json. `scale`: of the study, to check the runs against; `notes`: added to theirs."""
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
    """The number of runs of this scale, and the loaded runs outside it."""
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
    """The configurations of a study's scale by environment, label and seed; takes seconds to compose."""
    from meanq.config.errors import ConfigError
    from meanq.launching.plan import hydra_arguments, plan, register_schema

    register_schema()
    try:
        with tempfile.TemporaryDirectory() as nowhere:  # away from existing runs
            planned = plan(hydra_arguments(["-m", f"+study={name}", f"scale={scale}", f"root={nowhere}"]))
    except ConfigError as error:
        raise AnalysisError(str(error)) from None
    assert planned is not None
    return {(config.env.name, config.label, config.seed): asdict(config) for config in planned.configs}


def _different(recorded: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Fields of today that were recorded with another value than planned."""
    theirs, ours = flatten(recorded), flatten(planned)
    values = {name: field_value(theirs, name) for name in differing_fields([planned, recorded]) if name in ours}
    return [f"{name}={value}" for name, value in values.items() if value != ABSENT]


def _reached(run: Run) -> int:
    return int(run.status["step"]) if isinstance(run.status.get("step"), int) else run.last_evaluation


def _commits(meta: Mapping[str, Any]) -> str | None:
    """The commit of a run, preceded by those that it was started and resumed with."""
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
    """The number of runs with each value, largest first; empty if no run recorded any."""
    counted = Counter(NOT_RECORDED if value is None else str(value) for value in values)
    if set(counted) <= {NOT_RECORDED}:
        return {}
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def without_paths(paths: Sequence[Path], text: str) -> str:
    """Make paths in a text relative to the given ones; shorten others to their last part."""
    for path in sorted(map(str, paths), key=len, reverse=True):
        text = text.replace(f"{path}/", "")
    return re.sub(r"(?<![\w.~])[~.]{0,2}/(?:[^\s/'\":;,()]+/)*([^\s/'\":;,()]+)", r"\1", text)
