"""Benchmark sections without a reference agent: replay, memory, evaluation, start-up and parallel runs."""

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.measure import engine_side, interleave, resident_bytes
from benchmarks.sections import DATA_EFFICIENT, Findings, Scale, variants
from meanq.config.schema import Config
from meanq.envs import FrameStack, make_env
from meanq.learning.exploration import greedy
from meanq.rng import stream
from meanq.training.evaluation import Evaluator
from meanq.training.session import Session


def growth_with_replay(scale: Scale) -> Findings:
    """Time sampling and priorities of five members on MinAtar with a growing number of transitions."""
    rows = []
    for size in scale.replays:
        capacity = (f"algo.replay_capacity={size}", f"total_steps={max(2 * size, 2_000)}")
        config = scale.compose("algo=meanq", "env=minatar/asterix", *capacity, threads=1)
        times = interleave({"engine": engine_side(config, size)}, scale.seconds / 3, scale.warm_up)
        rows.append([f"{size:,}", f"{times.milliseconds('engine', 'sample'):.2f}"])
    title = "Replay: ms per update (sampling, states, priorities), meanq K=5 on MinAtar Asterix, one thread"
    return Findings(tables=[(title, ["transitions", "ms"], rows)])


def large_replay(scale: Scale) -> Findings:
    """Measure sampling time and process memory with 500,000 Atari frames and five members."""
    findings = Findings()
    size = scale.large_replay
    capacity = (f"algo.replay_capacity={size}", f"total_steps={size}")
    compiled = list(variants(scale).values())[-1]
    config = scale.compose("algo=meanq_rainbow", "env=asterix", *DATA_EFFICIENT, *capacity, compiled=compiled)
    side = engine_side(config, size)
    times = interleave({"engine": side}, scale.seconds / 2, scale.warm_up)
    resident = resident_bytes() / 1e9
    note = f"meanq_rainbow K=5, data-efficient, {size:,} frames of Asterix in replay"
    findings.add("replay/sample", times.milliseconds("engine", "sample"), f"{note}; all 160 transitions")
    findings.add("replay/memory/data_efficient", resident, f"{note}; the whole process after some updates")
    return findings


def large_replay_nature(scale: Scale) -> Findings:
    """Measure process memory for the vanilla study, whose networks are larger."""
    size = scale.large_replay
    capacity = (f"algo.replay_capacity={size}", f"total_steps={size}")
    compiled = list(variants(scale).values())[-1]
    config = scale.compose("algo=meanq", "env=asterix", *capacity, compiled=compiled)
    side = engine_side(config, size)
    for _ in range(scale.warm_up):
        side.update()
    findings = Findings()
    note = f"meanq K=5, Nature, {size:,} frames of Asterix in replay; the whole process after some updates"
    findings.add("replay/memory/nature", resident_bytes() / 1e9, note)
    return findings


def one_by_one(config: Config, values: Callable[[np.ndarray], np.ndarray], step: int) -> list[int]:
    """Play the episodes of an evaluation one after the other in a simple loop. Returns their lengths."""
    env = make_env(config.env, stream(config.seed, "evaluation"))
    lengths = []
    for i in range(config.evaluation.episodes):
        env.seed(stream(config.seed, "evaluation", step, i))
        frames = FrameStack(config.env.stack, env.frame_shape, env.frame_dtype)
        frames.start(env.reset())
        over, length = False, 0
        while not over:
            outcome = env.step(int(values(frames.state[None])[:, 0].mean(0).argmax()))
            frames.push(outcome.frame)
            over = outcome.terminal or outcome.truncated
            length += 1
        lengths.append(length)
    return lengths


def evaluation(scale: Scale) -> Findings:
    """Compare 20 parallel episodes with 20 sequential ones, and estimate evaluation's share of a run of 100,000."""
    findings = Findings()
    compiled = list(variants(scale).values())[-1]
    frames = f"env.options.max_frames={scale.evaluation_frames}"
    overrides = ("algo=meanq_rainbow", "env=asterix", *DATA_EFFICIENT, frames)
    config = scale.compose(*overrides, compiled=compiled)
    run = Session(config)
    evaluator = Evaluator(config)
    evaluator(greedy(run.loop.agent.values), 0)  # creates the environments, as the first evaluation of a run does
    ratios, lengths, at_once, same = [], [], 0.0, True
    for step in range(1, scale.repeats + 1):
        start = time.perf_counter()
        played = [episode.length for episode in evaluator(greedy(run.loop.agent.values), step)]
        between = time.perf_counter()
        plain = one_by_one(config, run.loop.agent.values, step)
        end = time.perf_counter()
        # Compare times per step, since rounding may change an episode's length.
        ratios.append((end - between) / sum(plain) / ((between - start) / sum(played)))
        lengths += played
        at_once += between - start
        same = same and plain == played
    per_step = at_once / sum(lengths)
    findings.add(
        "evaluation/ratio",
        statistics.median(ratios),
        f"meanq_rainbow K=5, data-efficient, fresh weights; games of {np.mean(lengths):.0f} steps of Asterix, "
        f"{'the same' if same else 'some different'} one by one; {1e3 * per_step:.2f} ms per step at once",
    )
    side = engine_side(config, scale.transitions)
    interaction = interleave({"engine": side}, scale.seconds / 2, scale.warm_up).milliseconds("engine") / 1e3
    evaluations = config.total_steps // config.evaluation.every
    evaluating = evaluations * config.evaluation.episodes * float(np.mean(lengths)) * per_step
    training = config.total_steps * interaction
    findings.add(
        "evaluation/share",
        evaluating / (evaluating + training),
        f"estimate: {evaluations} evaluations of {config.evaluation.episodes} such games; "
        f"{config.total_steps:,} interactions of {1e3 * interaction:.1f} ms",
    )
    return findings


# Runs what `python -m meanq.run` runs, and exits after the first gradient step.
_FIRST_STEP = """
import os, sys
import meanq.run, meanq.training.loop
learn = meanq.training.loop.Loop.learn
def once(loop):
    learn(loop)
    os._exit(7)
meanq.training.loop.Loop.learn = once
sys.argv = ["meanq.run", "root=" + sys.argv[1]]
meanq.run.main()
"""


def start_up(scale: Scale) -> Findings:
    """Time `--help`, and the default run up to its first gradient step."""
    findings = Findings()
    help_command = [sys.executable, "-m", "meanq.run", "--help"]
    note = f"median of {scale.repeats} without the first"
    seconds = [_seconds(help_command, 0) for _ in range(scale.repeats)]
    findings.add("start/help", statistics.median(seconds[1:] or seconds), f"{note}, {seconds[0]:.1f} s")
    seconds = []
    for _ in range(scale.repeats):
        with tempfile.TemporaryDirectory() as root:
            seconds.append(_seconds([sys.executable, "-c", _FIRST_STEP, root], 7))
    note = f"done, {note}, {seconds[0]:.1f} s; it follows interaction 1,600"
    findings.add("start/first_step", statistics.median(seconds[1:] or seconds), note)
    return findings


def _seconds(command: list[str], code: int) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != code:
        raise RuntimeError(f"{command[1:3]} ended with {done.returncode}: {done.stderr[-500:]}")
    return time.perf_counter() - start


def _milliseconds_of_a_run(scale: Scale) -> float:
    side = engine_side(scale.compose("algo=meanq", "env=minatar/asterix", threads=1), scale.transitions)
    return interleave({"engine": side}, scale.seconds / 2, scale.warm_up).milliseconds("engine")


def parallel_runs(scale: Scale) -> Findings:
    """Time a growing number of parallel runs with one thread each."""
    rows = []
    alone = 0.0
    for count in range(1, len(os.sched_getaffinity(0)) + 1):
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as processes:
            milliseconds = statistics.mean(processes.map(_milliseconds_of_a_run, [scale] * count))
        alone = alone or milliseconds
        rows.append([str(count), f"{milliseconds:.2f}", f"{count * alone / milliseconds:.2f}"])
    title = "Parallel runs, meanq K=5 on MinAtar Asterix, one thread each"
    return Findings(tables=[(title, ["runs", "ms per interaction", "throughput over one run"], rows)])
