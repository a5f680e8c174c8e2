"""From a command line to a plan: every run composed, named and checked before the first one starts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.schema import CONFIG_DIR, Config, register_schema
from meanq.launching.hydra_bridge import CONFIG_NAME, expand_sweep, parse_arguments
from meanq.launching.hydra_errors import one_line_errors
from meanq.launching.jobs import Compose, Job, override_key, study_jobs, sweep_jobs
from meanq.launching.labels import run_label
from meanq.launching.seeds import expand_seed_ranges
from meanq.launching.study import Study, split_study
from meanq.rundir.identity import check_directory
from meanq.rundir.layout import run_directory

IN_PROCESS = "basic"  # Hydra's launcher that runs jobs one after the other in this process
_REFERENCE_TO_SEED = re.compile(r"\$\{[^}]*\bseed\b")


@dataclass
class Plan:
    """The runs that a command line asks for."""

    configs: list[Config]
    jobs: list[Job]
    shared_overrides: list[str]  # of Hydra itself, and of where the runs are stored
    config_path: str
    config_name: str
    launcher: str
    study: Study | None = None
    scale: str | None = None

    @property
    def directories(self) -> list[Path]:
        """Run directories, in the order of the runs."""
        return [run_directory(config) for config in self.configs]

    @property
    def job_overrides(self) -> list[list[str]]:
        """The overrides of each run, its label included."""
        pairs = zip(self.jobs, self.configs, strict=True)
        return [[o for o in job.overrides if override_key(o) != "label"] + [_label_override(c)] for job, c in pairs]


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Rewrite a command line for Hydra: seeds listed, options first, --cfg with resolved values."""
    expanded = expand_seed_ranges(arguments)
    parsed = parse_arguments(expanded)
    options = list(expanded)
    for override in parsed.overrides:
        options.remove(override)
    if parsed.cfg == "job" and not parsed.resolve:
        options.append("--resolve")
    return options + parsed.overrides


def plan(arguments: Sequence[str]) -> Plan | None:
    """Compose and check every run. Writes nothing; raises ConfigError for a mistake.

    Returns None where the command only shows something: --cfg, --info and the like.
    """
    register_schema()
    options = parse_arguments(expand_seed_ranges(arguments))
    if options.help or options.hydra_help or options.shell_completion or options.info:
        return None
    study, scale, overrides = split_study(options.overrides)
    of_hydra = [o for o in overrides if override_key(o).startswith(("hydra.", "hydra/"))]
    overrides = [o for o in overrides if o not in of_hydra]
    launcher = next((o.partition("=")[2] for o in of_hydra if override_key(o) == "hydra/launcher"), IN_PROCESS)
    if options.config_dir:
        of_hydra.append(f"hydra.searchpath=['file://{Path(options.config_dir).absolute()}']")
    config_path = str(Path(options.config_path or CONFIG_DIR).absolute())
    config_name = options.config_name or CONFIG_NAME

    def compose_run(job: Sequence[str]) -> DictConfig:
        return compose(config_name, [*of_hydra, *job])

    GlobalHydra.instance().clear()
    with one_line_errors(of_hydra), initialize_config_dir(config_path, version_base="1.3"):
        jobs = study_jobs(study, study.scale(scale), overrides, compose_run) if study else sweep_jobs(overrides)
        if options.cfg:
            if study:
                raise ConfigError(f"--cfg: +study={study.name} is many runs; --dry-run lists them")
            compose_run(jobs[0].overrides)  # raises our own messages; Hydra then shows the configuration
            return None
        if not options.multirun:
            if launcher != IN_PROCESS:
                raise ConfigError(
                    f"hydra/launcher={launcher}: without -m the run would start here, in this process; add -m"
                )
            if study or len(jobs) > 1:
                several = f"+study={study.name}" if study else _swept(overrides)
                raise ConfigError(f"{several}: this names several runs; add -m to run them all")
        configs = _compose_all(jobs, compose_run)
    location = [o for o in jobs[0].overrides if override_key(o) in ("root", "study")]
    shared = [*of_hydra, *location]
    result = Plan(configs, jobs, shared, f"file://{config_path}", config_name, launcher, study, scale)
    _check_directories(result)
    return result


def _swept(overrides: Sequence[str]) -> str:
    """Return the first override with several values."""
    return next(o for o in overrides if len(expand_sweep([o])) > 1)


def _compose_all(jobs: Sequence[Job], compose_run: Compose) -> list[Config]:
    """Compose every job. That takes some tenths of a second, so jobs that differ only in their seed share it."""
    configs = []
    composed: dict[tuple[str, ...], Config] = {}
    for job in jobs:
        seeds = [o for o in job.overrides if re.fullmatch(r"seed=\d+", o)]
        others = tuple(o for o in job.overrides if o not in seeds)
        if others in composed:
            configs.append(replace(composed[others], seed=int(seeds[-1].removeprefix("seed="))))
            continue
        config = compose_run(job.overrides)
        if config.label is None:
            config.label = run_label(config.algo.name, job.in_label)
        shareable = bool(seeds) and not _REFERENCE_TO_SEED.search(OmegaConf.to_yaml(config))
        configs.append(from_omegaconf(config))
        if shareable:
            composed[others] = configs[-1]
    return configs


def _check_directories(plan: Plan) -> None:
    seen: set[Path] = set()
    for config, directory in zip(plan.configs, plan.directories, strict=True):
        if directory in seen:
            raise ConfigError(f"two runs of this sweep have the same directory {directory}: give each its label=")
        seen.add(directory)
        check_directory(directory, config)


def _label_override(config: Config) -> str:
    assert config.label is not None
    quoted = config.label.replace("'", "\\'")
    return f"label='{quoted}'"
