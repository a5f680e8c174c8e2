"""Jobs: the runs that overrides name, as a product of swept values or as the runs of a study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from omegaconf import DictConfig, OmegaConf

from meanq.config.errors import ConfigError
from meanq.launching.hydra_bridge import expand_sweep
from meanq.launching.seeds import expand_seed_ranges
from meanq.launching.study import Scale, Study

Compose = Callable[[Sequence[str]], DictConfig]  # overrides -> configuration


@dataclass
class Job:
    """One run, given by its overrides."""

    overrides: list[str]
    in_label: list[str]  # the overrides that distinguish this run from others


def override_key(override: str) -> str:
    """Return the field of an override, without + or ~."""
    return override.lstrip("+~").partition("=")[0]


def sweep_jobs(overrides: Sequence[str]) -> list[Job]:
    """One job per combination of swept values."""
    return [Job(job, job) for job in expand_sweep(overrides)]


def study_jobs(study: Study, scale: Scale, overrides: Sequence[str], compose: Compose) -> list[Job]:
    """The runs of a study, sorted by seed so that a study cut short still compares all algorithms.

    An override of a field that the study varies selects among its runs; any other override changes all of them.
    """
    runs = [job for sweep in scale.runs for job in expand_sweep(expand_seed_ranges(sweep))]
    varied = {override_key(o) for job in runs for o in job}
    selected = {
        override_key(o): {job[0].partition("=")[2] for job in expand_sweep([o])}
        for o in overrides
        if override_key(o) in varied
    }
    changes = [o for o in overrides if override_key(o) not in varied]
    changed = {override_key(o) for o in changes}
    common = [o for o in [f"study={study.name}", *scale.common] if override_key(o) not in changed]
    runs = _select(runs, selected, study.name, lambda job: compose([*common, *job]))
    jobs = [Job([*common, *run, *change], [*run, *change]) for change in expand_sweep(changes) for run in runs]
    return sorted(jobs, key=lambda job: next((int(o[5:]) for o in job.overrides if o.startswith("seed=")), 0))


def _select(
    jobs: Sequence[list[str]], selected: Mapping[str, set[str]], study: str, compose: Compose
) -> list[list[str]]:
    """Keep the jobs that have one of the selected values in every selected field."""

    @cache
    def composed(*job: str) -> DictConfig:
        return compose(job)

    def written(job: Sequence[str], key: str) -> str | None:
        values = [o.partition("=")[2] for o in job if override_key(o) == key]
        return values[-1] if values else None

    def default(job: Sequence[str], key: str) -> str:
        value = OmegaConf.select(composed(*(o for o in job if override_key(o) != "seed")), key)
        value = value.get("name") if isinstance(value, DictConfig) else value  # the choice of a group
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    kept = list(jobs)
    # Composing a job takes time, so fields whose default matters are selected last, among fewer jobs.
    for key in sorted(selected, key=lambda key: any(written(job, key) is None for job in jobs)):
        values = [written(job, key) or default(job, key) for job in kept]
        for value in sorted(selected[key] - set(values)):
            known = ", ".join(sorted(set(values), key=lambda text: (len(text), text)))
            raise ConfigError(f"{key}={value}: not among these runs of +study={study}; choose from {known}")
        kept = [job for job, value in zip(kept, values, strict=True) if value in selected[key]]
    return kept
