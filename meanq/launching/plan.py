"""What Hydra lacks: seed=0-4, +study=..., one clear line for a mistake, a check of every run before the first."""

import hashlib
import re
from argparse import ArgumentError, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError, closest
from meanq.config.fields import in_label, walk
from meanq.config.reference import group_choices
from meanq.config.schema import CONFIG_DIR, Config, register_schema
from meanq.launching.study import Study, choose, load_study, override_key
from meanq.rundir.identity import check_directory
from meanq.rundir.layout import run_directory

CONFIG_NAME = "config"
_SEED_HELP = "write whole numbers, a range first-last, or both: seed=3, seed=0-4, seed=0-2,7"

_REFERENCE_TO_SEED = re.compile(r"\$\{[^}]*\bseed\b")


def expand_seed_ranges(arguments: Sequence[str]) -> list[str]:
    """seed=0-2,7 -> seed=0,1,2,7. Hydra's own forms, such as range(0,5), pass through."""
    return [_expand_seeds(a) if re.match(r"\+{0,2}seed=", a) else a for a in arguments]


def _expand_seeds(argument: str) -> str:
    name, _, text = argument.partition("=")
    if "(" in text or "$" in text:
        return argument
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ConfigError(f"{argument}: {_SEED_HELP}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{argument}: the range {part.strip()} runs backwards; write seed={last}-{first}")
        seeds.extend(range(first, last + 1))
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        raise ConfigError(f"{argument}: seed {min(twice)} is named twice; {_SEED_HELP}")
    return f"{name}={','.join(map(str, seeds))}"


@dataclass
class Job:
    """One run, by its overrides."""

    overrides: list[str]
    in_name: list[str]  # those that tell the run from others, and so belong in its label


@dataclass
class Plan:
    """The runs that a command line asks for."""

    configs: list[Config]
    multirun: bool
    jobs: list[Job]
    shared_overrides: list[str]  # Hydra's own, and where the sweep goes
    config_path: str
    config_name: str
    study: Study | None = None
    scale: str | None = None

    @property
    def directories(self) -> list[Path]:
        """Where they will be."""
        return [run_directory(config) for config in self.configs]

    @property
    def job_overrides(self) -> list[list[str]]:
        """What a launcher needs to compose each run, its label included."""
        pairs = zip(self.jobs, self.configs, strict=True)
        return [[o for o in job.overrides if override_key(o) != "label"] + [label_override(c)] for job, c in pairs]


def plan(arguments: Sequence[str]) -> Plan | None:
    """Compose and check every run; None where Hydra only shows something. Raises ConfigError, writes nothing."""
    options = _parse(arguments)
    shows = options.help or options.hydra_help or options.shell_completion or options.info
    if shows:
        return None
    register_schema()
    study, scale, overrides = _split_study(options.overrides)
    of_hydra = [o for o in overrides if override_key(o).startswith(("hydra.", "hydra/"))]
    if options.config_dir:  # a directory of one's own, beside ours
        of_hydra.append(f"hydra.searchpath=['file://{Path(options.config_dir).absolute()}']")
    overrides = [o for o in overrides if o not in of_hydra]
    config_path = str(Path(options.config_path or CONFIG_DIR).absolute())
    config_name = options.config_name or CONFIG_NAME
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_path, version_base="1.3"):
            jobs = _study_jobs(study, scale, overrides, config_name, of_hydra) if study else _jobs(overrides)
            elsewhere = [o for o in of_hydra if override_key(o) == "hydra/launcher" and not o.endswith("=basic")]
            if elsewhere and not options.multirun and not options.cfg:
                raise ConfigError(f"{elsewhere[0]}: without -m the run would start here, in this process; add -m")
            if (study or len(jobs) > 1) and not options.multirun and not options.cfg:
                several = f"+study={study.name}" if study else _swept(overrides)
                raise ConfigError(f"{several}: this names several runs; add -m to run them all")
            if options.cfg:
                if study:
                    raise ConfigError(f"--cfg: +study={study.name} is many runs; --dry-run lists them")
                compose(config_name, [*of_hydra, *jobs[0].overrides])  # for a clear line where that fails
                return None
            configs = _compose_all(config_name, of_hydra, jobs)
    except MissingConfigException as error:
        raise ConfigError(_unknown_choice(error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        wrong = re.search(r"Could not override '(hydra\.launcher\.[^']+)'", str(error))
        raise ConfigError(_no_launcher_field(wrong[1], of_hydra) if wrong else _one_line(error)) from None
    place = [o for o in jobs[0].overrides if override_key(o) in ("root", "study")]
    result = Plan(
        configs, bool(options.multirun), jobs, [*of_hydra, *place], f"file://{config_path}", config_name, study, scale
    )
    _check_directories(result)
    return result


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """The same command as Hydra understands it: seeds listed, options first, --cfg with values, not references."""
    expanded = expand_seed_ranges(arguments)
    parsed = _parse(expanded)
    options = list(expanded)
    for override in parsed.overrides:
        options.remove(override)
    if parsed.cfg == "job" and not parsed.resolve:
        options.append("--resolve")
    return options + parsed.overrides


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        options, unknown = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise ConfigError(f"{error}; see --help") from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such option; see --help")
    return options


def _compose_all(name: str, of_hydra: Sequence[str], jobs: Sequence[Job]) -> list[Config]:
    """The typed configuration of every job. Composing takes some tenths of a second, so seeds share it if they can."""
    configs = []
    composed: dict[tuple[str, ...], Config] = {}
    for job in jobs:
        seeds = [o for o in job.overrides if re.fullmatch(r"seed=\d+", o)]
        others = tuple(o for o in job.overrides if o not in seeds)
        if others in composed:
            configs.append(replace(composed[others], seed=int(seeds[-1].removeprefix("seed="))))
            continue
        config = compose(name, [*of_hydra, *job.overrides])
        if config.label is None:
            config.label = run_label(config.algo.name, job.in_name)
        seeds_share = bool(seeds) and not _REFERENCE_TO_SEED.search(OmegaConf.to_yaml(config))
        configs.append(from_omegaconf(config))
        if seeds_share:
            composed[others] = configs[-1]
    return configs


def _jobs(overrides: Sequence[str]) -> list[Job]:
    """The runs of a sweep."""
    return [Job(job, job) for job in _product(overrides)]


def _product(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the swept values, as Hydra writes them (1e-3 is 0.001), but true and false in small letters.

    Without a sweep, too: the same run must have the same name.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    jobs = [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    return [[re.sub(r"=(True|False)$", lambda value: value[0].lower(), o) for o in job] for job in jobs]


def _swept(overrides: Sequence[str]) -> str:
    """The first override that names several values."""
    return next(o for o in overrides if len(_product([o])) > 1)


def _split_study(overrides: Sequence[str]) -> tuple[Study | None, str | None, list[str]]:
    """The study and its scale, where they are named, and the other overrides."""
    named = {key: [o for o in overrides if o.startswith(key)] for key in ("+study=", "scale=")}
    others = [o for o in overrides if o not in named["+study="] + named["scale="]]
    for key, given in named.items():
        if len(given) > 1:
            raise ConfigError(f"{given[1]}: one {key.strip('+=')} at a time")
    names = {key: given[0].removeprefix(key) if given else None for key, given in named.items()}
    study, scale = names["+study="], names["scale="]
    if study is None:
        if scale is not None:
            raise ConfigError(f"scale={scale}: only a study has scales; write +study=... scale={scale}")
        return None, None, others
    loaded = load_study(study)
    loaded.scale(scale)
    return loaded, scale, others


def _study_jobs(
    study: Study, scale_name: str | None, overrides: Sequence[str], config_name: str, of_hydra: Sequence[str]
) -> list[Job]:
    """The runs of a study. An override of what the study varies chooses among its runs; any other changes them all.

    All algorithms of the first seed come first, so that a study cut short still compares.
    """
    scale = study.scale(scale_name)
    runs = [job for sweep in scale.runs for job in _product(expand_seed_ranges(sweep))]
    varied = {override_key(o) for job in runs for o in job}
    choices: dict[str, set[str]] = {}
    for override in overrides:
        if override_key(override) in varied:
            values = {job[0].partition("=")[2] for job in _product([override])}
            choices[override_key(override)] = values
    changes = [o for o in overrides if override_key(o) not in varied]
    changed = {override_key(o) for o in changes}
    common = [o for o in [f"study={study.name}", *scale.common] if override_key(o) not in changed]

    @cache
    def composed(*job: str) -> DictConfig:
        return compose(config_name, [*of_hydra, *common, *job])

    def unwritten(job: Sequence[str], key: str) -> str:
        value = OmegaConf.select(composed(*(o for o in job if override_key(o) != "seed")), key)
        value = value.get("name") if isinstance(value, DictConfig) else value  # a group's choice
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    runs = choose(runs, choices, study.name, unwritten)
    jobs = [Job([*common, *run, *change], [*run, *change]) for change in _product(changes) for run in runs]
    return sorted(jobs, key=lambda job: next((int(o[5:]) for o in job.overrides if o.startswith("seed=")), 0))


def _check_directories(plan: Plan) -> None:
    seen: set[Path] = set()
    for config, directory in zip(plan.configs, plan.directories, strict=True):
        if directory in seen:
            raise ConfigError(f"two runs of this sweep have the same directory {directory}: give each its label=")
        seen.add(directory)
        check_directory(directory, config)


def run_label(algo: str, overrides: Iterable[str]) -> str:
    """The algorithm and whatever was overridden: meanq, or meanq__ensemble_size=10__total_steps=20000."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if not in_label(key):
            continue
        parts.append(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", f"{key.removeprefix('algo.')}={value}").strip("-"))
    label = "__".join([algo, *sorted(parts)])
    if len(label) > 120:  # a file name has its limits
        label = f"{label[:100]}__{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return label


def label_override(config: Config) -> str:
    """So that whoever composes a run again gives it the name it has in the plan."""
    assert config.label is not None
    quoted = config.label.replace("'", "\\'")
    return f"label='{quoted}'"


def _unknown_choice(error: MissingConfigException) -> str:
    missing = error.missing_cfg_file or ""
    group, _, name = missing.rpartition("/")
    while group and not (CONFIG_DIR / group).is_dir():
        group, _, head = group.rpartition("/")
        name = f"{head}/{name}"
    if not group:
        return _one_line(error)
    if group.startswith("env/"):  # minatar/asterixx is a choice of env, not of env/minatar
        group, name = "env", f"{group.removeprefix('env/')}/{name}"
    added_by_plugins = [option for option in error.options or [] if option[0] != "_"]
    known = [*group_choices(group), *added_by_plugins]
    return f"{group}={name}: there is no such {group.rpartition('/')[2]}{closest(name, set(known))}"


def _no_launcher_field(key: str, of_hydra: Sequence[str]) -> str:
    chosen = [o for o in of_hydra if override_key(o) == "hydra/launcher"]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        launcher = compose(CONFIG_NAME, chosen, return_hydra_config=True).hydra.launcher
    fields = [f"hydra.launcher.{name}" for name in launcher if not str(name).startswith("_")]
    if not fields:
        return f"{key}: it is a field of another launcher; write hydra/launcher=local or hydra/launcher=slurm, too"
    return f"{key}: {chosen[0] if chosen else 'this launcher'} has no such field{closest(key, fields)}"


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages in our form: field=value: what is wrong."""
    text = f"{error}\n{error.__cause__ or ''}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and ("not in" in text or "is not in struct" in text):
        key = unknown[1]
        names = [name for name, _ in walk()]
        if key in names:  # a dictionary, given new entries
            return f"{key}: new entries need a plus sign; write +{key}.name=value"
        return f"{key}: there is no such field{closest(key, names)}"
    invalid = re.search(r"Value '(.*?)'.*? (?:could not be converted to|is not a valid) (\w+)", text, re.DOTALL)
    where = re.search(r"full_key: (\S+)", text)
    if invalid and where:
        kinds = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
        return f"{where[1]}={invalid[1]}: write {kinds.get(invalid[2], invalid[2])}"
    needed = re.search(r"field '([^']+)' is not Optional", text)
    if needed:
        return f"{needed[1]}=null: it needs a value; leave it out for its default"
    group = re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text)
    if group:
        groups = [path.name for path in CONFIG_DIR.iterdir() if path.is_dir()]
        return f"{group[1]}: there is no such group{closest(group[1], groups)}"
    if isinstance(error, MissingMandatoryValue) and where:
        return f"{where[1]}: it has no default; write {where[1]}=..."
    if isinstance(error, OverrideParseException):
        return " ".join(str(error).split("See https")[0].split())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(dict.fromkeys(lines[:3]))
