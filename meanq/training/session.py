"""One run from beginning to end: begin or resume, train, observe, save, stop, finish.

After every step of the loop the run is observed: evaluated, probed, logged. Observing changes nothing that training
depends on, so a checkpoint is always made between a step and its observation, and a resumed run begins by observing.
"""

import contextlib
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from meanq.config.errors import ConfigError
from meanq.config.extensions import sources
from meanq.config.schema import Config, LoggerConfig
from meanq.envs import make_env
from meanq.learning import build
from meanq.learning.exploration import random_share
from meanq.learning.networks import parameter_count
from meanq.rng import stream
from meanq.rundir.checkpoint import CheckpointError, Checkpoints, Saved, check_state
from meanq.rundir.circumstances import circumstances
from meanq.rundir.layout import DIAGNOSIS, EVALUATIONS, TIMINGS, TRAINING, Episode, run_directory
from meanq.rundir.reader import read_status
from meanq.rundir.writer import Record, reason_of
from meanq.training import machine
from meanq.training.evaluation import Evaluator, evaluation_policy, make_probes
from meanq.training.loop import Loop
from meanq.training.memory import check_memory
from meanq.training.signals import StopSignals
from meanq.training.terminal import TerminalReporter


class Session:
    """One seed of one algorithm in one environment. Making it checks what can be checked and writes nothing.

    `make_mirror` makes a copy of the run elsewhere (meanq.mirrors.process), or None.
    """

    def __init__(
        self,
        config: Config,
        *,
        overrides: Sequence[str] = (),
        make_mirror: Callable[[LoggerConfig, Path], Any] = lambda logger, directory: None,
    ) -> None:
        self.config = config
        self.directory = run_directory(config)
        self.device = machine.resolve_device(config.device)
        env = make_env(config.env, stream(config.seed, "env"))
        build.check_augmentation(config.algo, build.state_shape(config, env))
        check_memory(config, env, self.device)
        network = build.make_network(config, env, self.device)
        self._pixels_read = network.seen  # strides can leave out the edge of an image, e.g. Assault's gauge
        self.replay_bytes = build.replay_size(config, env)
        needed, free, where = self.replay_bytes, machine.available_memory(), ""
        if self.device.type == "cuda" and config.replay_on_device:
            needed, free, where = build.frames_size(config, env), machine.gpu_memory(self.device), " on the GPU"
        self._replay_memory = f"{machine.human_bytes(needed)} of {machine.human_bytes(free)} free{where}"
        machine.tune_process(machine.thread_count(config))
        self.compiled, self._why_compiled = machine.resolve_compile(config, self.device)
        agent = build.make_agent(config, network, self.device, compile=self.compiled)
        explorer, replay = build.make_explorer(config, env), build.make_replay(config, env, self.device)
        self.loop = Loop(config, env, agent, explorer, replay)
        self._clock, self._statistics = self.loop.clock, self.loop.statistics
        self._evaluate = Evaluator(config)
        self._probes = make_probes(config)
        self._record = Record(self.directory, config)
        self._checkpoints = Checkpoints(self.directory)
        self._signals = StopSignals()
        self._overrides = list(overrides)
        self._make_mirror = make_mirror
        self._mirror: Any = None
        self._savable = True  # False: the environment cannot save its state
        self._saved = 0  # the step of the newest checkpoint
        self.last_evaluation: list[Episode] = []

    def facts(self) -> str:
        """What will be trained, in a line."""
        image, read = ("x".join(map(str, size)) for size in (self.loop.env.frame_shape[1:], self._pixels_read))
        return (
            f"{self.config.algo.ensemble_size} member(s), {parameter_count(self.loop.agent.online):,} parameters"
            f"{'' if read == image else f' that read {read} of {image} pixels'}; "
            f"replay {build.replay_capacity(self.config):,} frames = {self._replay_memory}; "
            f"{self.device.type}, {torch.get_num_threads()} thread(s); learner "
            f"{'' if self.compiled else 'not '}compiled ({self._why_compiled})"
        )

    def train(self, reporter: TerminalReporter) -> None:
        """Train from the first interaction, or from the last checkpoint, to the end."""
        self._record.open()
        try:
            if not self._is_finished():  # another process may have finished it a moment ago
                with self._signals:
                    self._train(reporter)
        except Exception as error:
            self._note_end("failed", **reason_of(error))
            raise
        except BaseException:  # Ctrl-C, or whatever else ends the process
            self._note_end("interrupted")
            raise
        finally:
            if self._mirror:
                self._mirror.close(read_status(self.directory).get("state", ""))
            self._record.close()

    def _train(self, reporter: TerminalReporter) -> None:
        config, loop = self.config, self.loop
        saved = self._load_checkpoint(reporter)
        if saved is None:
            self._begin(reporter)
        else:
            self._resume(saved, reporter)
            self._observe(reporter)
        while loop.step < config.total_steps:
            loop.advance()
            if loop.step % config.checkpoint.every == 0 or loop.step == config.total_steps:
                self._save()
            self._heartbeat_or_stop()
            self._observe(reporter)
        self._finish()

    def _begin(self, reporter: TerminalReporter) -> None:
        self._clock.start()
        self._record.start()
        self.loop.start_game()
        try:
            check_state(self.loop.env.state_dict(), "env")  # now, and not at the first checkpoint
        except NotImplementedError as error:
            self._savable = False
            reporter.warn(f"{error}, so there will be no checkpoints: if interrupted, the run starts again")
        self._announce(reporter)
        self._probe()

    def _load_checkpoint(self, reporter: TerminalReporter) -> Saved | None:
        """The last good checkpoint; None where there never was one."""
        saved = self._checkpoints.load(reporter.warn)
        known = read_status(self.directory).get("checkpoint")
        if saved is None and known is not None:
            raise CheckpointError(
                f"{self._checkpoints.directory} has lost the checkpoint of step {known}; remove {self.directory} to "
                "start the run again from the beginning"
            )
        return saved

    def _resume(self, saved: Saved, reporter: TerminalReporter) -> None:
        state = saved.state
        try:
            self._check_same_machine(state, reporter)
            if not 0 < state["threads"] <= machine.MAX_THREADS or not math.isfinite(state["seconds"]):
                raise ValueError(f"{state['threads']!r:.20} threads, {state['seconds']!r:.20} seconds")
            torch.set_num_threads(state["threads"])  # another number would round otherwise
            self.loop.load_state_dict(saved.step, state)
            saved.restore_frames(self.loop.replay)
            self._statistics.load_state_dict(state, self.device)
            self._clock.start(saved.step, state["seconds"])
            self._record.resume(saved.step, state["record"])
        except (CheckpointError, ConfigError):
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, zlib.error) as error:
            what = f"state-{saved.step}.json does not fit this run ({type(error).__name__}: {error})"
            remedy = f"remove {self.directory} to start the run again from the beginning"
            raise CheckpointError(f"{self._checkpoints.directory}: {' '.join(what.split())}; {remedy}") from None
        self._saved = saved.step
        self._announce(reporter)

    def _check_same_machine(self, state: dict[str, Any], reporter: TerminalReporter) -> None:
        """Raise where the run could not go on exactly; warn where versions differ."""
        versions = self._versions()
        remedy = f"resume it where it began, or remove {self.directory} to start again"
        began, here = state["versions"]["device"], versions["device"]
        if began != here:
            what = f"the run began on {began} and cannot go on on {here}, whose random numbers are others"
            raise CheckpointError(f"device={self.config.device}: {what}; {remedy}")
        if state["compiled"] != self.compiled:
            began = "compiled" if state["compiled"] else "not compiled"
            what = f"the run began {began} and cannot go on otherwise ({self._why_compiled})"
            raise CheckpointError(f"compile={self.config.compile}: {what}; {remedy}")
        for name, version in state["versions"].items():
            if version and versions.get(name, version) not in (version, None):
                reporter.warn(f"saved with {name} {version} and resumed with {versions[name]}: results may differ")

    def _announce(self, reporter: TerminalReporter) -> None:
        with self._clock.time("save"):
            self._record.meta(**self._about())
            reporter.started(self.config, self.directory, self.facts(), self.loop.step)
            self._mirror = self._make_mirror(self.config.logger, self.directory)

    def _save(self) -> None:
        """Make a checkpoint of the state after this step, before it is observed."""
        step = self.loop.step
        if not self._savable or self._saved == step:
            return
        with self._clock.time("save"):
            self.loop.check_finite()
            self._record.flush()
            state = {
                **self.loop.state_dict(),
                **self._statistics.state_dict(),
                "record": self._record.position(),
                "seconds": self._clock.seconds,
                "threads": torch.get_num_threads(),
                "compiled": self.compiled,
                "versions": self._versions(),
            }
            self._checkpoints.save(step, state, self.loop.replay)
            if self.compiled:
                machine.trim_memory()
            self._saved = step
            self._record.checkpointed(step)
            self._record.status("running", step=step)

    def _heartbeat_or_stop(self) -> None:
        """Refresh the heartbeat; honour a pending stop. Called often, between a step and what observing it writes."""
        self._record.heartbeat()
        if self._signals.wanted is None:
            return
        self._save()
        self._record.status("interrupted", step=self.loop.step)
        self._signals.hand_over()
        self._record.status("running", step=self.loop.step)

    def _observe(self, reporter: TerminalReporter) -> None:
        """Evaluate, probe and log where due; evaluation first, since the run may be saved while it lasts."""
        config, step = self.config, self.loop.step
        last = step == config.total_steps
        evaluating = last or step % config.evaluation.every == 0
        probing = last or step % config.probe.every == 0
        logging = last or step % config.log_every == 0
        if evaluating:
            with self._clock.time("evaluate"):
                policy = evaluation_policy(self.loop.agent, config, step)
                self.last_evaluation = self._evaluate(policy, step, self._heartbeat_or_stop)
            with self._clock.time("save"):
                rows = [episode.row(step, i) for i, episode in enumerate(self.last_evaluation)]
                self._record.add(EVALUATIONS, *rows)
                reporter.evaluated(step, self.last_evaluation)
                self._record.flush()
        if probing:
            self._probe()
        if logging:
            self._log()
        if self._mirror and (evaluating or probing or logging):
            with self._clock.time("save"):
                self._mirror.update(step)
        reporter.progress(step, random_share(config.algo, step), self._statistics.last_return)

    def _probe(self) -> None:
        with self._clock.time("evaluate"):
            q = self.loop.agent.values(self._probes.states)
            policy_value = self._probes.policy_value(q, self.config.algo.discount)
            diagnosis = self.loop.agent.diagnose(self._probes.states)
        with self._clock.time("save"):
            self._record.probe(self.loop.step, q, self._probes.true_q, policy_value)
            if diagnosis:
                self._record.add(DIAGNOSIS, {"step": self.loop.step, **diagnosis})
            self._record.flush()

    def _log(self) -> None:
        step = self.loop.step
        timing = self._clock.take_row(step)
        with self._clock.time("save"):
            self._record.add(TIMINGS, timing)
            means = self._statistics.take_row()
            epsilon = random_share(self.config.algo, step)
            diagnostics = self.loop.agent.diagnostics(self._probes.states)
            self._record.add(TRAINING, {"step": step, **means, "epsilon": epsilon, **diagnostics})
            self._record.flush()
            self._record.status("running", step=step)

    def _finish(self) -> None:
        self.loop.check_finite()
        agent = self.loop.agent
        self._record.weights(agent.online)
        self._record.meta(**self._about(), cached_targets=agent.caches_targets, seconds=self._clock.seconds)
        self._record.status("finished", step=self.loop.step)
        if not self.config.checkpoint.keep:
            self._checkpoints.remove()

    def _is_finished(self) -> bool:
        return read_status(self.directory).get("state") == "finished"

    def _note_end(self, state: str, **details: Any) -> None:
        """Write how the run ended before its time. The tables on disk are whole already."""
        if not self._is_finished():
            with contextlib.suppress(OSError):  # the directory may be gone
                self._record.end(state, step=self.loop.step, **details)

    def _about(self) -> dict[str, Any]:
        """What made the run, and what roundings, hence the last digits of results, depend on."""
        overrides = {"overrides": self._overrides} if self._overrides else {}
        made_on = {"threads": torch.get_num_threads(), "device": self.device.type, "compiled": self.compiled}
        own = {"sources": found} if (found := sources(self.config)) else {}
        return {**overrides, **made_on, **own}

    def _versions(self) -> dict[str, str | None]:
        """What results may depend on beside the configuration."""
        now = circumstances()
        gpu = {"gpu": torch.cuda.get_device_name(self.device)} if self.device.type == "cuda" else {}
        return {**now["versions"], "commit": now["commit"], "device": self.device.type, **gpu}
