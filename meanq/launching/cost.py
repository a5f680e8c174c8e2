"""Estimate the time of runs from the arithmetic of their networks; the table of --dry-run; whether runs fit."""

from collections import defaultdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from meanq.config.schema import AlgoConfig, Config
from meanq.envs import Environment, make_env
from meanq.launching.overrides import seed_ranges
from meanq.launching.plan import IN_PROCESS, Plan, make_launcher
from meanq.learning.bootstrap import bootstrap_rule
from meanq.learning.build import make_network, weight_shapes
from meanq.learning.networks import parameter_count
from meanq.rng import stream
from meanq.status.overview import duration
from meanq.training.machine import resolve_device
from meanq.training.memory import check_memory, check_room
from meanq.training.terminal import make_console

# Fitted by hand to learner steps measured on 2 CPU cores (see `make bench`): arithmetic, weights, fixed overhead.
_FLOPS_PER_SECOND = 95e9
_SECONDS_PER_WEIGHT = 1.5e-9  # per update: optimiser and noise
_SECONDS_PER_UPDATE = 1.5e-3
_SECONDS_PER_ACTION = 0.5e-3
_ENV_SECONDS = {"atari": 0.5e-3}
_OTHER_ENV_SECONDS = 0.05e-3
MACHINE = "2 CPU cores"
_TITLES = {"question": "asks", "paper": "paper", "refuted_by": "refuted by"}
_PLAIN: Any = {"highlight": False, "markup": False}


def evaluations_per_update(algo: AlgoConfig) -> int:
    """Count the states that networks evaluate in one gradient step; forward and backward together count as three."""
    members, batch = algo.ensemble_size, algo.batch_size
    all_members = bootstrap_rule(algo.bootstrap).all_members or algo.confidence_temperature is not None
    rows = members if algo.minibatch == "independent" and all_members else 1
    next_states = (algo.bootstrap_subset or members) * rows * batch
    lagging = algo.target_snapshots if algo.target_network is not None else 1
    return (3 * members * batch + next_states * (lagging + (1 if algo.double else 0))) * algo.parallel_networks


def estimate_seconds(config: Config, env: Environment) -> float:
    """Estimate acting and learning, without evaluations, since the length of their games is not known."""
    algo = config.algo
    network = make_network(config, env)
    weights = parameter_count(weight_shapes(config, network))
    flops = 2 * network.multiply_adds * evaluations_per_update(algo)
    updates = max(0, config.total_steps - algo.first_update) / algo.interactions_per_update * algo.gradient_steps
    per_update = flops / _FLOPS_PER_SECOND + weights * _SECONDS_PER_WEIGHT + _SECONDS_PER_UPDATE
    per_step = _SECONDS_PER_ACTION + _ENV_SECONDS.get(config.env.kind, _OTHER_ENV_SECONDS)
    return updates * per_update + config.total_steps * per_step


def check_fits(plan: Plan) -> None:
    """Raise ConfigError where a run cannot fit in the memory that its launcher has for it, as the run itself would."""
    launcher = None if plan.launcher == IN_PROCESS else make_launcher(plan.launcher_fields)
    room = launcher.room(plan.configs) if launcher else None
    for config in {(c.env.name, c.label): c for c in plan.configs}.values():
        env = make_env(config.env, stream(0, "cost"))  # only for its shapes
        if room:
            check_room(config, env, room.gpu and config.device != "cpu", room.size, room.whose, room.remedy)
        elif launcher is None:
            check_memory(config, env, resolve_device(config.device))


def show_plan(plan: Plan) -> None:
    """Print the runs and their estimated times."""
    console, study = make_console(), plan.study
    if study is not None:
        scale = study.scale(plan.scale)
        about = ", ".join(text for text in (scale.machine, scale.cost) if text)
        named = f", scale {plan.scale}" if plan.scale else ""
        console.print(f"{study.name}{named}{f' ({about})' if about else ''}", style="bold", **_PLAIN)
        for name, text in study.texts.items():
            console.print(f"  {_TITLES[name]}: {text}", **_PLAIN)
    groups: dict[tuple[str, str], list[Config]] = defaultdict(list)
    for config in plan.configs:
        groups[config.env.name, config.label or ""].append(config)
    table = Table(header_style="bold")
    for name in ("environment", "run"):
        table.add_column(name, overflow="fold")
    for name in ("seeds", "runs", "interactions", "each", "in all"):
        table.add_column(name, justify="right", no_wrap=True)
    total, envs = 0.0, dict[str, Environment]()
    for (name, label), configs in groups.items():
        if name not in envs:  # only for its shapes
            envs[name] = make_env(configs[0].env, stream(0, "cost"))
        each = estimate_seconds(configs[0], envs[name])
        total += each * len(configs)
        seeds, steps = seed_ranges(config.seed for config in configs), f"{configs[0].total_steps:,}"
        table.add_row(
            escape(name), escape(label), seeds, str(len(configs)), steps, duration(each), duration(each * len(configs))
        )
    console.print(table)
    count, place = len(plan.configs), f"{plan.configs[0].root}/{plan.configs[0].study}"
    time = f"roughly {duration(total)} one after the other on {MACHINE}, evaluations not counted"
    console.print(f"{count} run{'s' * (count > 1)} below {place}, {time}.", **_PLAIN, soft_wrap=True)
