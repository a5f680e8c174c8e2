"""Benchmark sections that compare the engine (meanq's learner and loop) with the reference and for more members.

The speed goals are measured in sections, here and in resources.py. Each section runs in its own process, so that
threads, memory and compiled code of one section do not affect the next.
"""

import statistics
from dataclasses import dataclass, field
from functools import cache

import torch

from benchmarks.measure import (
    IMPORTANCE_EXPONENT,
    PARTS,
    UPDATE,
    WHOLE,
    Side,
    compose,
    describe,
    engine_side,
    fill_engine,
    interleave,
    learner_flop,
    reference_side,
)
from meanq.config.schema import Config
from meanq.envs import FrameStack, make_env
from meanq.learning.learner import why_not_compile
from meanq.rng import stream
from meanq.training.session import Session

# The main agent's network in the released configuration: Nature's convolutions with the main agent's hidden layers.
NATURE = ("network=nature_256",)
DATA_EFFICIENT = ("network=data_efficient",)


@dataclass(frozen=True)
class Scale:
    """The amount of work per measurement."""

    seconds: float = 10.0  # duration of a comparison's rounds
    warm_up: int = 5  # untimed updates per side
    transitions: int = 20_000  # in replay for comparisons
    large_replay: int = 500_000
    replays: tuple[int, ...] = (10_000, 100_000, 1_000_000)  # replay sizes for growth_with_replay
    moments: tuple[int, ...] = (10_000, 50_000, 90_000)  # interactions at which the target cache is timed
    copy_points: int = 8  # points between two copies of the target network at which updates are timed
    members: tuple[int, ...] = (1, 2, 5, 10)
    evaluation_frames: int = 4_000  # maximum frames per game
    repeats: int = 3  # repetitions of start-up and evaluation
    compiled: bool = True
    threads: int | None = None  # unless the goal is for one thread; None: all cores
    overrides: tuple[str, ...] = ()

    def compose(self, *overrides: str, compiled: bool = False, threads: int | None = None) -> Config:
        """Compose a run. Epsilon is low from the start, since random actions would hide the cost of acting."""
        overrides = (*overrides, "algo.epsilon.start=0.1", *self.overrides)
        return compose(*overrides, compiled=compiled, threads=threads or self.threads)


QUICK = Scale(
    seconds=0.0,
    warm_up=1,
    transitions=200,
    large_replay=2_000,
    replays=(200, 400),
    moments=(200, 300),
    copy_points=1,
    members=(1, 2),
    evaluation_frames=80,
    repeats=1,
    compiled=False,
    threads=1,
    overrides=("algo.batch_size=2",),
)


@dataclass
class Findings:
    """The measurements of a section."""

    figures: dict[str, float] = field(default_factory=dict)  # by goal key
    notes: dict[str, str] = field(default_factory=dict)  # how each figure was measured, by the same key
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)  # title, columns, rows

    def add(self, key: str, figure: float, note: str) -> None:
        self.figures[key] = figure
        self.notes[key] = note

    def merge(self, other: "Findings") -> None:
        self.figures |= other.figures
        self.notes |= other.notes
        self.tables += other.tables


@cache
def can_compile() -> bool:
    return why_not_compile(torch.device("cpu")) is None


def variants(scale: Scale) -> dict[str, bool]:
    """Return the variants of the engine that can be timed; the last is the one that a long run uses."""
    return {"eager": False} | ({"compiled": True} if scale.compiled and can_compile() else {})


def flop_of(config: Config) -> int:
    """Count the floating point operations of an update."""
    env = make_env(config.env, stream(0, "benchmark"))
    shape = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype).state.shape
    return learner_flop(config, shape, env.num_actions)


def against_reference(key: str, scale: Scale, *overrides: str, threads: int | None = None) -> Findings:
    """Time whole interactions and shares of the matmul peak for the engine, eager and compiled, and the reference."""
    sides: dict[str, Side] = {}
    for name, compiled in variants(scale).items():
        capacity = f"algo.replay_capacity={scale.transitions}"
        config = scale.compose(*overrides, capacity, compiled=compiled, threads=threads)
        sides[name] = engine_side(config, scale.transitions)
    sides["reference"] = reference_side(config, scale.transitions)
    times = interleave(sides, scale.seconds, scale.warm_up)
    flop = flop_of(config)
    findings = Findings()
    engine = list(variants(scale))[-1]
    ratios = ", ".join(f"{name} {times.ratio('reference', name):.2f}" for name in variants(scale))
    findings.add(f"{key}/ratio", times.ratio("reference", engine), ratios)
    for name in variants(scale):
        note = f"{flop / 1e9:.3g} GFLOP; with sampling and priorities {times.share(name, flop, UPDATE):.0%}"
        findings.add(f"{key}/share/{name}", times.share(name, flop), note)
    findings.add(f"{key}/share", times.share(engine, flop), f"{engine}; {note}")
    findings.add(f"{key}/ms", times.milliseconds(engine), engine)
    rows = [
        [*row, f"{times.share(name, flop):.0%}"] for row, name in zip(describe(times, list(sides)), sides, strict=True)
    ]
    peak = statistics.median(times.peaks) / 1e9
    title = f"{key}: ms per interaction, and per update for sample and learn; peak {peak:.0f} GF/s"
    findings.tables.append((title, ["side", WHOLE, *PARTS, "of peak"], rows))
    return findings


def meanq_rainbow_nature(scale: Scale) -> Findings:
    """Time the main agent with Nature's convolutions."""
    return against_reference("meanq_rainbow/nature", scale, "algo=meanq_rainbow", "env=asterix", *NATURE)


def meanq_rainbow_data_efficient(scale: Scale) -> Findings:
    """Time the main agent with the data-efficient network of the paper's text."""
    overrides = ("algo=meanq_rainbow", "env=asterix", *DATA_EFFICIENT)
    return against_reference("meanq_rainbow/data_efficient", scale, *overrides)


def over_a_run(key: str, scale: Scale, *overrides: str, threads: int | None = None) -> Findings:
    """Time the target cache, averaged over a run of 100,000, against no cache and against the reference.

    The number of missing values depends on the size of replay and on the time since the target network was copied. At
    each moment of the run, updates are therefore timed at evenly spaced points between two copies; the updates between
    these points only sample and do not learn. Their priorities do not change, so all transitions are drawn about
    equally often.
    """
    name, compiled = list(variants(scale).items())[-1]
    length = scale.moments[-1] + scale.moments[0]
    sizes = (f"algo.replay_capacity={length}", f"total_steps={max(length, 2_000)}")
    config = scale.compose(*overrides, *sizes, compiled=compiled, threads=threads)
    sides = {keep: engine_side(config, scale.moments[0], keep_values=keep == "kept") for keep in ("kept", "computed")}
    sides["reference"] = reference_side(config, scale.transitions)
    kept, algo = sides["kept"].engine, config.algo
    assert algo.target_network is not None
    apart = algo.target_network // algo.interactions_per_update // scale.copy_points
    rows, held = [], scale.moments[0]
    for moment in scale.moments:
        for run in (kept, sides["computed"].engine):
            fill_engine(run, moment - held)
            assert len(run.loop.replay) > 0.99 * moment
        held = moment
        for side in sides.values():
            side.update()  # warm up
        kept.loop.agent._invalidate_cache()
        rounds: dict[str, list[float]] = {side: [] for side in sides}
        for point in range(scale.copy_points):
            draw_only(kept, apart if point else apart // 2)
            for label, side in sides.items():
                rounds[label].append(statistics.median(side.update()[WHOLE] for _ in range(3)))
        rows.append([statistics.mean(rounds[label]) for label in sides])
    kept_ms, computed, reference = (1e3 * statistics.mean(column) for column in zip(*rows, strict=True))
    findings = Findings()
    used = "" if kept.loop.agent.caches_targets else "; NOT cached, since this machine does not round all rows alike"
    note = f"{name}; {reference:.1f} / {kept_ms:.1f} ms; {computed / kept_ms:.2f}x by caching next states' values{used}"
    findings.add(f"{key}/ratio", reference / kept_ms, note)
    table = [[f"{moment:,}", *(f"{1e3 * s:.1f}" for s in row)] for moment, row in zip(scale.moments, rows, strict=True)]
    title = f"{key}, next states' values cached or recomputed: ms per interaction, mean between two copies"
    findings.tables.append((title, ["in replay", "cached", "recomputed", "reference"], table))
    return findings


def draw_only(run: Session, updates: int) -> None:
    """Sample `updates` minibatches and mark their next states as cached, with zeros instead of computed values."""
    target_cache = run.loop.agent._target_cache
    if target_cache is None:
        return
    evaluate = target_cache._evaluate
    target_cache._evaluate = lambda _, states: torch.zeros(len(states), run.loop.env.num_actions)
    for _ in range(updates):
        batch = run.loop.replay.sample(run.config.algo.ensemble_size, run.config.algo.batch_size, IMPORTANCE_EXPONENT)
        run.loop.agent._cached_values(batch, len(run.loop.replay))
    target_cache._evaluate = evaluate


def meanq_nature(scale: Scale) -> Findings:
    """Time vanilla MeanQ, with an update every 2 interactions. Its ratio is for a whole run with the target cache."""
    overrides = ("algo=meanq", "env=asterix")
    findings = against_reference("meanq/nature", scale, *overrides)
    findings.merge(over_a_run("meanq/nature", scale, *overrides))
    return findings


def single_networks(scale: Scale) -> Findings:
    """Time single networks against the reference, including DQN with uniform replay as in a single-file script."""
    findings = Findings()
    plain_dqn = ("algo=dqn", "algo.dueling=false", "algo.prioritized=false")
    for key, overrides in (
        ("dqn/nature", ("algo=dqn",)),
        ("plain_dqn/nature", plain_dqn),
        ("rainbow/data_efficient", ("algo=rainbow", *DATA_EFFICIENT)),
    ):
        findings.merge(against_reference(key, scale, *overrides, "env=asterix"))
    return findings


def minatar(scale: Scale) -> Findings:
    """Time MinAtar on one thread: five members, and one member with an update at each interaction."""
    asterix = "env=minatar/asterix"
    findings = against_reference("minatar/5", scale, "algo=meanq", asterix, threads=1)
    findings.merge(over_a_run("minatar/5", scale, "algo=meanq", asterix, threads=1))
    each = "algo.interactions_per_update=1"
    findings.merge(against_reference("minatar/1", scale, "algo=dqn", asterix, each, threads=1))
    return findings


def growth_with_members(scale: Scale) -> Findings:
    """Time a learner step with a growing number of members; compiled only for one and five."""
    findings = Findings()
    rows = []
    for network, overrides, threads in (
        ("nature", ("env=asterix", *NATURE), None),
        ("data_efficient", ("env=asterix", *DATA_EFFICIENT), None),
        ("minatar", ("env=minatar/asterix",), 1),
    ):
        sides = {}
        for name, compiled in variants(scale).items():
            for members in scale.members:
                if compiled and members not in (1, 5):
                    continue
                sizes = (f"algo.ensemble_size={members}", f"algo.replay_capacity={scale.transitions // 4}")
                all_overrides = ("algo=meanq_rainbow", *overrides, *sizes)
                config = scale.compose(*all_overrides, compiled=compiled, threads=threads)
                sides[f"{name}/{members}"] = engine_side(config, scale.transitions // 4)
        times = interleave(sides, scale.seconds, scale.warm_up)
        last = 5 if 5 in scale.members else scale.members[-1]
        growth = {name: times.ratio(f"{name}/{last}", f"{name}/1", "learn") for name in variants(scale)}
        note = ", ".join(f"{name} {ratio:.1f}" for name, ratio in growth.items())
        findings.add(f"members/{network}", list(growth.values())[-1], f"meanq_rainbow, K={last} over K=1; {note}")
        for name in variants(scale):
            cells = [
                f"{times.milliseconds(f'{name}/{k}', 'learn'):.1f}" if f"{name}/{k}" in sides else "-"
                for k in scale.members
            ]
            rows.append([network, name, *cells])
    columns = ["network", "engine", *(f"K={k}" for k in scale.members)]
    findings.tables.append(("ms per learner step, meanq_rainbow", columns, rows))
    return findings
