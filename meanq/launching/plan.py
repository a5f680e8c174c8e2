"""From a command line to a plan: every run composed, named and checked before the first one starts."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from meanq.config.checks import check_names, from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.extensions import own_code
from meanq.config.reference import GROUPS
from meanq.config.schema import CONFIG_DIR, Config, register_schema
from meanq.launching.hydra_bridge import check_of_hydra, expand_sweep, one_line_errors, parse_arguments
from meanq.launching.overrides import for_hydra, label_override, older_label, override_key, run_label
from meanq.launching.study import Job, Study, split_study, study_jobs
from meanq.rundir.identity import check_directory
from meanq.rundir.layout import run_directory

CONFIG_NAME = "config"  # conf/config.yaml
IN_PROCESS = "basic"  # runs one after the other in this process; the name is Hydra's
_REFERENCE_TO_SEED = re.compile(r"\$\{[^}]*\bseed\b")


@dataclass
class Plan:
    """The runs that a command line asks for."""

    configs: list[Config]
    job_overrides: list[list[str]]  # of each run, its label included
    launcher: str
    launcher_fields: dict[str, Any]  # hydra.launcher
    study: Study | None = None
    scale: str | None = None

    @property
    def directories(self) -> list[Path]:
        """Run directories, in the order of the runs."""
        return [run_directory(config) for config in self.configs]


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Rewrite a command line for Hydra: seeds listed, options first, --cfg with resolved values."""
    expanded = for_hydra(arguments)
    parsed = parse_arguments(expanded)
    options = [argument for argument in expanded if argument not in parsed.overrides]
    if parsed.cfg == "job" and not parsed.resolve:
        options.append("--resolve")
    return options + parsed.overrides


def plan(arguments: Sequence[str], if_several: str = "add -m to run them all") -> Plan | None:
    """Compose and check every run. Writes nothing; raises ConfigError for a mistake, which several runs without -m are.

    Returns None where the command only shows something: --cfg, --info and the like.
    """
    register_schema()
    options = parse_arguments(for_hydra(arguments))
    if options.help or options.hydra_help or options.shell_completion or options.info:
        return None
    if options.cfg and (options.multirun or options.run):
        raise ConfigError("--cfg: it shows one run; leave -m out")
    study, scale, overrides = split_study(options.overrides)
    of_hydra = [o for o in overrides if override_key(o).startswith(("hydra.", "hydra/"))]
    overrides = [o for o in overrides if o not in of_hydra]
    for override in of_hydra:
        check_of_hydra(override)
    config_dirs = [Path(options.config_dir).absolute()] if options.config_dir else []
    launcher = next((o.partition("=")[2] for o in of_hydra if override_key(o) == "hydra/launcher"), IN_PROCESS)
    if options.config_dir:
        of_hydra.append(f"hydra.searchpath=['file://{config_dirs[0]}']")
    config_path = str(Path(options.config_path or CONFIG_DIR).absolute())
    config_name = options.config_name or CONFIG_NAME
    GlobalHydra.instance().clear()
    with one_line_errors(), initialize_config_dir(config_path, version_base="1.3"):
        if study:
            scale = study.only_scale(scale)
            jobs = study_jobs(study, study.scale(scale), overrides)
        else:
            jobs = [Job(job, job) for job in expand_sweep(overrides, config_dirs)]
        if options.cfg:
            if study:
                raise ConfigError(f"--cfg: +study={study.name} is many runs; --dry-run lists them")
            check_names(compose(config_name, [*of_hydra, *jobs[0].overrides]))  # our messages; Hydra then shows it
            return None
        if not options.multirun and launcher != IN_PROCESS:
            raise ConfigError(f"hydra/launcher={launcher}: without -m the run would start here; add -m")
        if not options.multirun and (study or len(jobs) > 1):
            swept = next((o for o in overrides if len(expand_sweep([o], config_dirs)) > 1), "")
            several = f"+study={study.name}" if study else swept
            raise ConfigError(f"{several}: this names several runs; {if_several}")
        configs = _compose_all(config_name, jobs, of_hydra)
        location = [o for o in jobs[0].overrides if override_key(o) in ("root", "study")]
        composed = compose(config_name, [*of_hydra, *location], return_hydra_config=True)
        fields: Any = OmegaConf.to_container(composed.hydra.launcher, resolve=True)
    if launcher != IN_PROCESS and not fields["_target_"].startswith("meanq."):
        raise ConfigError(f"hydra/launcher={launcher}: meanq does not know it; write basic, local or slurm")
    if launcher != IN_PROCESS:
        make_launcher(fields)
    words = [[o for o in job.overrides if override_key(o) != "label"] for job in jobs]
    labels = [label_override(str(config.label)) for config in configs]
    job_overrides = [[*job, label] for job, label in zip(words, labels, strict=True)]
    result = Plan(configs, job_overrides, launcher, fields, study, scale)
    _check_directories(result)
    _try_own_code(result)
    return result


def make_launcher(fields: Mapping[str, Any]) -> Any:
    """Make a launcher, which checks its fields; raises ConfigError."""
    return get_class(fields["_target_"])(**{name: value for name, value in fields.items() if name != "_target_"})


def _compose_all(config_name: str, jobs: Sequence[Job], of_hydra: Sequence[str]) -> list[Config]:
    """Compose every job. That takes some tenths of a second, so jobs that differ only in their seed share it."""
    configs = []
    composed: dict[tuple[str, ...], Config] = {}
    for job in jobs:
        seeds = [o for o in job.overrides if re.fullmatch(r"seed=\d+", o)]
        others = tuple(o for o in job.overrides if o not in seeds)
        if others in composed:
            configs.append(replace(composed[others], seed=int(seeds[-1].removeprefix("seed="))))
            continue
        config = compose(config_name, [*of_hydra, *job.overrides])
        if config.label is None:
            config.label = _label(config, job.in_label)
        shareable = bool(seeds) and not _REFERENCE_TO_SEED.search(OmegaConf.to_yaml(config))
        configs.append(from_omegaconf(config))
        if shareable:
            composed[others] = configs[-1]
    return configs


def _label(config: DictConfig, overrides: Sequence[str]) -> str:
    """The label of a run that was given none; that of an older version where its runs are stored under it."""
    older = older_label(config.algo.name, overrides)
    directory = Path(config.root) / config.study / config.env.name / older
    stored = os.path.isdir(directory)  # noqa: PTH112 - false where the path is too long, which is told later
    return older if stored else run_label(config.algo.name, overrides)


def _try_own_code(plan: Plan) -> None:
    """Try code that the user's import paths name, once for all seeds of a run."""
    tried = set()
    for config in plan.configs:
        if own_code(config) and (what := repr((config.algo, config.env, config.network))) not in tried:
            from meanq.launching.smoke import try_own_code  # imports torch

            tried.add(what)
            try_own_code(config)


def _check_directories(plan: Plan) -> None:
    seen: dict[Path, list[str]] = {}  # overrides of the run there
    for config, directory, overrides in zip(plan.configs, plan.directories, plan.job_overrides, strict=True):
        if directory in seen:
            different = sorted({override_key(o) for o in set(overrides) ^ set(seen[directory])} - {"label"})
            fields = [f"${{{name}.name}}" if name in GROUPS else f"${{{name}}}" for name in different]
            remedy = (
                f"give each its name, for example 'label={'_'.join(['NAME', *fields])}'" if fields else "leave one out"
            )
            raise ConfigError(f"two runs of this sweep have the same directory {directory}: {remedy}")
        seen[directory] = overrides
        check_directory(directory, config)
