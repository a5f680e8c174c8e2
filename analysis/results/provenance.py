"""Where kept results come from, and the commands that repeat their runs, as the runs recorded it.

Kept results are published, so there are no host names and no paths.
"""

import re
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from meanq.config.fields import ABSENT, field_value, flatten
from meanq.launching.overrides import unquoted_label
from meanq.launching.study import STUDY_DIR, Study, load_study

from ..runs import AnalysisError, RunSet, differing_fields

NOT_RECORDED = "not recorded"
PRIVATE = ("root", "logger", "hydra")  # settings that name directories, accounts and clusters


def provenance(
    found: RunSet, paths: Sequence[Path], scale: str | None, notes: Iterable[str], study: Study | None = None
) -> dict[str, Any]:
    """The content of provenance.json.

    `study` and `scale`: to check the runs against; without `study`, that of ablations/ with the runs' name. `notes`:
    added to those of the runs.
    """
    runs, metas = found.runs, [run.meta for run in found.runs]
    names = sorted({str(run.config.get("study")) for run in runs})
    if scale is not None and study is None:
        if len(names) > 1:
            raise AnalysisError(f"scale {scale}: these are runs of several studies ({', '.join(names)}); name none")
        study = load_study(names[0])
    versions = [{"python": meta.get("python"), **meta.get("versions", {})} for meta in metas]
    packages = {name: _count(each.get(name) for each in versions) for name in sorted(set().union(*versions))}
    return {
        "study": ", ".join(names),
        **(_of_study(study) if study else {}),
        **(_of_scale(found, study, scale) if study else {}),
        "runs": len(runs),
        "finished": sum(run.state == "finished" for run in runs),
        "interactions": sum(run.last_evaluation for run in runs),
        "hours": round(sum(run.seconds for run in runs if run.seconds == run.seconds) / 3600, 2),
        "copied": _count(meta["copied_from"] for meta in metas if "copied_from" in meta),
        "commits": _count(map(_commits, metas)),
        "machines": _count(f"{meta['cpu']}, {meta.get('cores')} cores" if "cpu" in meta else None for meta in metas),
        "threads": _count(meta.get("threads") for meta in metas),
        "devices": _count(meta.get("device") for meta in metas),
        "versions": {name: counted for name, counted in packages.items() if counted},
        "commands": commands(found),
        "notes": [without_paths(paths, note) for note in (*found.messages(), *notes)],
    }


def _of_study(study: Study) -> dict[str, Any]:
    """The file's name and its texts, unless it is in ablations/, where the page finds them."""
    if study.path.resolve().parent == STUDY_DIR.resolve():
        return {}
    return {"study_file": study.path.name, "study_texts": study.texts}


def _of_scale(found: RunSet, study: Study, scale: str | None) -> dict[str, Any]:
    """The scale, the number of its runs, and the loaded runs outside it with the fields in which they differ."""
    wanted = _planned(str(study.path), scale)
    others = []
    for run in found.runs:
        planned = wanted.get((run.env, run.config["label"], run.seed))
        different = []
        if planned is not None:
            recorded, known = flatten(run.config), flatten(planned)
            values = {n: field_value(recorded, n) for n in differing_fields([planned, run.config]) if n in known}
            different = [f"{n}={value}" for n, value in values.items() if value != ABSENT]
        if planned is None or different:
            fields = f" ({', '.join(different)})" if different else ""
            others.append(f"{run.env}, {run.label}, seed {run.seed}{fields}")
    return {"scale": scale, "runs_of_scale": len(wanted), "not_of_scale": others}


@cache
def _planned(study: str, scale: str | None) -> dict[tuple[str, str | None, int], dict[str, Any]]:
    """The configurations of a study's scale by environment, label and seed; takes seconds to compose."""
    from meanq.launching.plan import plan

    with tempfile.TemporaryDirectory() as nowhere:  # away from existing runs
        of_scale = [] if scale is None else [f"scale={scale}"]
        planned = plan(["-m", f"+study={study}", *of_scale, f"root={nowhere}"])
    assert planned is not None
    return {(config.env.name, config.label, config.seed): asdict(config) for config in planned.configs}


def _commits(meta: Mapping[str, Any]) -> str | None:
    """The commit of a run, preceded by those that it was started and resumed with."""
    earlier = [part["commit"] for part in meta.get("earlier", []) if "commit" in part]
    return ", then ".join(map(str, [*earlier, meta["commit"]])) if "commit" in meta else None


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


def commands(found: RunSet) -> list[str]:
    """One command for all runs of a label that differ in seed and environment only; a comment where none is known."""
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)  # choices of env; by label, words before and after
    for (_, label), runs in found.groups().items():
        words = next((known for run in runs if (known := public_overrides(run.meta)) is not None), None)
        if words is None:
            alike[label, f"# {label}: command not recorded; config.yaml of each run has every value", ""] = []
            continue
        algo = [word for word in words if word.startswith("algo=")]
        others = [word for word in words if not word.startswith(("algo=", "env=", "seed="))]
        before = shlex.join(["python", "-m", "meanq.run", "-m", *algo])
        after = shlex.join([f"seed={_ranges(run.seed for run in runs)}", *others])
        alike[label, before, f" {after}"] += [word.removeprefix("env=") for word in words if word.startswith("env=")]
    made = []
    for (_, before, after), envs in alike.items():
        made.append(f"{before} env={shlex.quote(','.join(envs))}{after}" if envs else before + after)
    return made


def public_overrides(meta: Mapping[str, Any]) -> list[str] | None:
    """The recorded overrides without private settings; None if the run recorded no overrides."""
    words = meta.get("overrides")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    public = [word for word in words if re.split("[=./]", word.lstrip("+~"), maxsplit=1)[0] not in PRIVATE]
    return list(map(unquoted_label, public))


def _ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2, 7 as 0-2,7."""
    counted = enumerate(sorted(numbers))
    runs = [[number for _, number in run] for _, run in groupby(counted, lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
