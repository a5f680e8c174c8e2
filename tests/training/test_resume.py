"""Exact resume: kill a run anywhere, start it again, as often as you like; it ends with the same bytes."""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import meanq
from meanq.config.errors import ConfigError
from meanq.config.schema import Config
from meanq.learning.agent import DivergedError
from meanq.rundir import circumstances, files
from meanq.rundir.checkpoint import CheckpointError, Checkpoints, _from_plain, _to_plain
from meanq.rundir.lock import BusyError, lock_holder
from meanq.rundir.progress import read_run
from meanq.rundir.reader import read_status
from meanq.training.session import Session
from meanq.training.signals import StopSignals
from tests.helpers import slow_but
from tests.short_runs import SHORT, SilentReporter, compose_run, make_run, train

BYTES = ("config.yaml", "evaluations.csv", "training.csv", "diagnosis.csv", "probes.npz", "weights.safetensors")
PACKAGE = str(Path(meanq.__file__).parent)
SMALL = (*SHORT, "checkpoint.every=50")  # at no multiple of evaluation, probes or rows but 200
ELSEWHERE = tuple(o for o in SMALL if not o.startswith("env"))
ATARI = (
    "env=qbert",
    "network=data_efficient",
    "total_steps=130",
    "algo.first_update=40",
    "algo.interactions_per_update=10",
    "algo.replay_capacity=90",
    "evaluation.every=60",
    "evaluation.episodes=2",
    "env.options.max_frames=160",
    "probe.every=40",
    "probe.states=2",
    "log_every=30",
    "checkpoint.every=25",
    "threads=1",
)

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.training"])


def at_line(number: int, files: tuple[str, ...], action: Callable[[], None]) -> Callable[[], int]:
    """Act when so many lines of these files have been executed, from now on; how many there have been."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == number:
                action()
        return local

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return local if name.startswith(PACKAGE) and name.endswith(files) else None

    sys.settrace(tracer)
    return lambda: count


def child(config: Config, number: int, files: tuple[str, ...], sent: int, counted: Any) -> None:
    """Train in a process of its own, which sends itself a signal at a line."""
    run = Session(config)
    count = at_line(number, files, lambda: os.kill(os.getpid(), sent))
    try:
        run.train(SilentReporter())
    finally:
        sys.settrace(None)
        counted.value = count()


def start(
    root: Path, overrides: tuple[str, ...], number: int = 0, files: tuple[str, ...] = ("",), sent: int = 9
) -> Any:
    """The exit code of a run in a process of its own, and the lines it executed where it lived to tell."""
    config, counted = compose_run(root, *overrides), context.Value("q", 0)
    process = context.Process(target=child, args=(config, number, files, int(sent), counted))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode, counted.value


def directory_of(root: Path) -> Path:
    (status,) = root.rglob("status.json")
    return status.parent


def assert_same(directory: Path, reference: Path) -> None:
    for name in BYTES[1:]:
        assert (directory / name).read_bytes() == (reference / name).read_bytes(), name
    assert json.loads((directory / "status.json").read_text())["state"] == "finished"
    assert not (directory / "checkpoint").exists() and not (directory / "lock").exists()
    assert not [path.name for path in directory.iterdir() if path.name.startswith(".")], "leftovers"


CASES = {
    **{f"{algo} on MinAtar": (f"algo={algo}", *SMALL) for algo in ("meanq", "avg_dqn", "bootstrapped_dqn")},
    "qr_dqn on MinAtar": ("algo=qr_dqn", *SMALL, "algo.quantiles=20"),
    "qr_dqn with five members on MinAtar": ("algo=qr_dqn", *SMALL, "algo.quantiles=20", "algo.ensemble_size=5"),
    "mellowmax on MinAtar": ("algo=mellowmax", *SMALL, "algo.target_network=null"),
    "hl_gauss on MinAtar": ("algo=hl_gauss", *SMALL, "algo.ensemble_size=2", "network.layer_norm=channels"),
    "layer norm on MinAtar": ("algo=meanq", *SMALL, "network.layer_norm=features", "algo.target_network=40"),
    "dqn in a Garnet MDP": ("algo=dqn", *ELSEWHERE, "env=garnet", "env.options.features=8", "probe.states=0"),
    "subset_min on the chain": ("algo=subset_min", *ELSEWHERE, "env=chain"),
    "subset_min without target on MinAtar": ("algo=subset_min", *SMALL, "algo.target_network=null"),
    "resets on the chain": ("algo=dqn", *ELSEWHERE, "env=chain", "algo.reset_every=17"),
    "resets of all layers on MinAtar": ("algo=meanq_no_target", *SMALL, "algo.reset_every=17", "algo.reset_layers=all"),
    "resets of noisy layers and random subsets on MinAtar": (
        *("algo=meanq_rainbow", *SMALL, "algo.bootstrap=min", "algo.bootstrap_subset=2", "algo.target_network=40"),
        *("algo.reset_every=17", "algo.reset_layers=all", "network.layer_norm=features"),
    ),
    "resets with an optimiser of torch on the chain": (
        *("algo=meanq", *ELSEWHERE, "env=chain", "algo.reset_every=17", "algo.optimiser=torch.optim.NAdam"),
    ),
    "meanq_rainbow on MinAtar": ("algo=meanq_rainbow", *SMALL, "env=minatar/freeway"),
    "sunrise on MinAtar": ("algo=sunrise", *SMALL, "algo.multi_step=3", "algo.random_shift=1"),
    **{f"{algo} on Atari": (f"algo={algo}", *ATARI) for algo in ("meanq", "avg_dqn", "bootstrapped_dqn")},
    "meanq_rainbow on Atari": ("algo=meanq_rainbow", *ATARI, "env=seaquest", "algo.ensemble_size=2"),
    "the released protocol on Atari": (
        *("algo=meanq_rainbow", *ATARI, "env=breakout", "protocol=released", "algo.ensemble_size=2"),
        *("algo.random_steps=90", "algo.importance_steps=100", "env.options.max_frames=400"),
    ),
    "drq_eps on MinAtar": (
        *("algo=drq_eps", *SMALL, "algo.random_shift=1", "algo.random_intensity=0.05", "algo.epsilon.begin=50"),
        *("algo.epsilon.steps=100", "algo.epsilon.evaluation=0.1", "network.padding=same"),
        *("network.shared_hidden=true", "network.initial_weights=xavier"),
    ),
    "dqn in gymnasium": (
        "algo=dqn",
        *ELSEWHERE,
        "env=gymnasium",
        "env.id=CartPole-v1",
    ),
    "meanq_no_target on the chain": (
        "algo=meanq_no_target",
        *ELSEWHERE,
        "env=chain",
    ),
}


@pytest.mark.parametrize(
    "name", slow_but(CASES, "avg_dqn on MinAtar", "meanq_no_target on the chain", "subset_min on the chain")
)
def test_killed_anywhere_it_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    """kill -9 at lines drawn at random from the whole run, again and again until it gets through."""
    overrides = CASES[name]
    code, lines = start(tmp_path / "reference", overrides)
    assert code == 0
    generator = np.random.default_rng(len(name))
    kills = 0
    while start(tmp_path / "killed", overrides, int(generator.integers(1, 0.9 * lines)))[0] == -9:
        kills += 1
        assert kills < 60, "it never gets through"
    assert kills >= 1
    assert_same(directory_of(tmp_path / "killed"), directory_of(tmp_path / "reference"))


@pytest.mark.slow
def test_a_compiled_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Compiled once for the reference and twice more for the run that is killed, in processes of their own."""
    overrides = ("algo=meanq_rainbow", *SMALL, "algo.ensemble_size=2", "compile=true")
    reference, killed = tmp_path / "reference", tmp_path / "killed"
    code, lines = start(reference, overrides, files=("loop.py", "session.py"))
    assert code == 0
    assert start(killed, overrides, int(0.7 * lines), files=("loop.py", "session.py"))[0] == -9
    assert json.loads((directory_of(killed) / "status.json").read_text())["checkpoint"] > 0
    assert start(killed, overrides)[0] == 0
    assert_same(directory_of(killed), directory_of(reference))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["checkpoint.py", "writer.py", "evaluation.py", "buffer.py"])
def test_killed_within_a_part(file: str, finished: Path, tmp_path: Path) -> None:
    """Such as half way through writing a checkpoint, a table, or in the middle of an evaluation."""
    lines = start(tmp_path / "count", SMALL, files=(file,))[1]
    generator = np.random.default_rng(len(file))
    for number in generator.integers(1, lines // 2, 6):
        start(tmp_path / "killed", SMALL, int(number), (file,))
    assert start(tmp_path / "killed", SMALL)[0] == 0
    assert_same(directory_of(tmp_path / "killed"), finished)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("finished"), *SMALL).directory


class Stop(SilentReporter):
    """Raise after a step, as a crash would."""

    def __init__(self, step: int, error: BaseException | None = None) -> None:
        self.step, self.error, self.warnings = step, error or RuntimeError("crash"), list[str]()
        self.first = 0

    def started(self, config: Any, directory: Path, facts: str, step: int) -> None:
        self.first = step

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def progress(self, step: int, *rest: Any) -> None:
        if step == self.step:
            raise self.error


def crashed(root: Path, step: int, *overrides: str) -> Session:
    run = make_run(root, *SMALL, *overrides)
    with pytest.raises(RuntimeError, match="crash"):
        run.train(Stop(step))
    return run


def test_it_goes_on_from_the_last_checkpoint(finished: Path, tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["step"], status["checkpoint"]) == ("failed", 130, 100)
    assert status["reason"] == "RuntimeError: crash" and "Traceback" in status["traceback"]
    reporter = Stop(-1)
    make_run(tmp_path, *SMALL).train(reporter)
    assert reporter.first == 100 and not reporter.warnings
    assert_same(directory, finished)
    assert json.loads((directory / "meta.json").read_text())["resumed"] == [100]


def test_the_state_that_is_acted_on_comes_back(tmp_path: Path) -> None:
    """A wrong one would show only where the very next action is a greedy one."""
    before, after = crashed(tmp_path, 100), crashed(tmp_path, 100)
    assert before.loop._frames.state.any()
    assert np.array_equal(before.loop._frames.state, after.loop._frames.state)


def signalled(config: Config, step: int, sent: int) -> None:
    """Train in a process of its own, which is sent a signal after a step."""

    class Signalling(SilentReporter):
        def progress(self, now: int, *rest: Any) -> None:
            if now == step:
                os.kill(os.getpid(), sent)

    if sent == signal.SIGHUP:
        signal.signal(sent, signal.SIG_DFL)  # it is ignored where the tests run under nohup
    Session(config).train(Signalling())


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_saves_at_the_step_where_it_comes(sent: signal.Signals, finished: Path, tmp_path: Path) -> None:
    process = context.Process(target=signalled, args=(compose_run(tmp_path, *SMALL), 136, int(sent)))
    process.start()
    process.join(120)
    assert process.exitcode == (1 if sent == signal.SIGINT else 128 + sent)  # multiprocessing's for KeyboardInterrupt
    directory = directory_of(tmp_path)
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["step"], status["checkpoint"]) == ("interrupted", 137, 137)
    assert start(tmp_path, SMALL)[0] == 0
    assert json.loads((directory / "meta.json").read_text())["resumed"] == [137]
    assert_same(directory, finished)


class AtTheEnd(SilentReporter):
    """Does something when the last step has been looked at, before the run is called finished."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def progress(self, step: int, *rest: Any) -> None:
        if step == 240:
            self._action()


def test_ctrl_c_at_the_very_end_stops_a_sweep_and_leaves_the_run_finished(finished: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SMALL)
    with pytest.raises(KeyboardInterrupt):
        run.train(AtTheEnd(lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert_same(run.directory, finished)


def test_a_checkpoint_that_cannot_be_removed_leaves_the_run_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*arguments: Any, **named: Any) -> None:
        raise OSError("Directory not empty")

    run = make_run(tmp_path, *SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", busy)
        run.train(SilentReporter())
    assert read_status(run.directory)["state"] == "finished" and (run.directory / "checkpoint").exists()


def test_a_run_that_is_made_to_exit_says_that_it_was_interrupted(finished: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SMALL)
    with pytest.raises(SystemExit):
        run.train(AtTheEnd(sys.exit))
    status = read_status(run.directory)
    assert (status["state"], status["step"], status["checkpoint"]) == ("interrupted", 240, 240)
    assert_same(train(tmp_path, *SMALL).directory, finished)


def test_one_ctrl_c_may_come_twice_and_a_second_one_acts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` passes on what the terminal has sent to the run already."""
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.wanted == signal.SIGINT
        monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it goes on")


def test_a_state_that_cannot_be_saved_is_noticed_before_the_first_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SMALL)
    run.loop.env.state_dict = lambda: {"game": object()}  # type: ignore[method-assign]
    with pytest.raises(TypeError, match=r"env/game: a state cannot hold object"):
        run.train(SilentReporter())
    assert run.loop.step == 0


def test_damaged_files_are_named_with_a_remedy(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    probes = (directory / "probes.npz").read_bytes()
    for cut in (0, 10, len(probes) // 2):
        (directory / "probes.npz").write_bytes(probes[:cut])
        with pytest.raises(ConfigError, match=r"probes.npz cannot be read .*remove the directory to start"):
            train(tmp_path, *SMALL)
    for content in (b"a: [1", b"\xff\xfe"):
        (directory / "config.yaml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"^[^\n]*config.yaml cannot be read [^\n]*remove the directory to start"):
            train(tmp_path, *SMALL)


def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(finished: Path, tmp_path: Path) -> None:
    lines = start(tmp_path / "count", SMALL, files=("evaluation.py",))[1]
    assert start(tmp_path / "run", SMALL, lines // 3, ("evaluation.py",), signal.SIGTERM)[0] == 143
    directory = directory_of(tmp_path / "run")
    assert json.loads((directory / "status.json").read_text())["checkpoint"] == 120
    assert not (directory / "evaluations.csv").exists()
    assert start(tmp_path / "run", SMALL)[0] == 0
    assert_same(directory, finished)


def test_the_handler_from_before_has_the_last_word(finished: Path, tmp_path: Path) -> None:
    """submitit's handler queues the job again and exits on SIGUSR2, and lets the job go on on SIGTERM."""
    run = make_run(tmp_path, *SMALL)
    seen = []

    class Signalling(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 77:
                os.kill(os.getpid(), signal.SIGUSR2)

    def handler(number: int, frame: Any) -> None:
        seen.append((number, json.loads((run.directory / "status.json").read_text())))

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        run.train(Signalling())
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)
    ((number, status),) = seen
    assert number == signal.SIGUSR2
    assert (status["state"], status["step"], status["checkpoint"]) == ("interrupted", 78, 78)
    assert_same(run.directory, finished)


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(
            data[:middle] if how == "cut" else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        )


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
@pytest.mark.parametrize("file", ["state-100.json", "arrays-100.safetensors"])
def test_a_broken_checkpoint_is_noticed_and_the_one_before_is_used(
    file: str, how: str, finished: Path, tmp_path: Path
) -> None:
    directory = crashed(tmp_path, 130).directory
    if (file, how) == ("state-100.json", "missing"):
        return  # then there is nothing to notice: the last good one is simply an older one
    (path,) = (directory / "checkpoint").glob(file)
    damage(path, how)
    reporter = Stop(-1)
    make_run(tmp_path, *SMALL).train(reporter)
    assert reporter.first == 50
    (warning,) = reporter.warnings
    assert "state-100.json cannot be used" in warning and path.name in warning
    assert_same(directory, finished)


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
def test_damaged_frames_are_restored_from_their_copies(how: str, finished: Path, tmp_path: Path) -> None:
    """Both checkpoints need the oldest frames: without the copies the run would be lost."""
    directory = crashed(tmp_path, 130).directory
    originals = [p for p in (directory / "checkpoint").glob("frames-*") if p.suffix != ".copy"]
    for path in originals:
        damage(path, how)
    reporter = Stop(-1)
    make_run(tmp_path, *SMALL).train(reporter)
    assert reporter.first == 100
    assert [warning.endswith("restored from its copy") for warning in reporter.warnings] == [True] * len(originals)
    assert len(originals) == 2
    assert_same(directory, finished)


def test_frames_damaged_together_with_their_copy_are_an_error(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    for path in (directory / "checkpoint").glob("frames-0-*"):
        damage(path, "flipped")
    with pytest.raises(CheckpointError, match=r"frames-0-.*\.copy is damaged"):
        make_run(tmp_path, *SMALL).train(SilentReporter())


def test_a_checkpoint_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Pruning there would remove the files of others."""
    directory, elsewhere = crashed(tmp_path, 130).directory, tmp_path / "elsewhere"
    (directory / "checkpoint").rename(elsewhere)
    (elsewhere / "thesis.tex").write_text("years of work")
    (directory / "checkpoint").symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    with pytest.raises(CheckpointError, match="is a link; replace it"):
        make_run(tmp_path, *SMALL).train(SilentReporter())
    assert sorted(elsewhere.iterdir()) == before


def test_files_of_others_beside_a_checkpoint_stay(finished: Path, tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    others = [directory / "checkpoint" / "notes.txt", directory / "checkpoint" / ".hidden", directory / ".a.notebook"]
    leftovers = [directory / "checkpoint" / ".frames-0-50.abcd1234", directory / ".status.json.abcd1234"]
    for path in others + leftovers:
        path.write_text("x")
    make_run(tmp_path, *SMALL).train(SilentReporter())
    assert [path.read_text() for path in others] == ["x"] * 3
    assert not any(path.exists() for path in leftovers)


def test_a_file_that_cannot_be_read_back_is_noticed_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = crashed(tmp_path, 130).directory
    write = files.write_atomically

    def lossy(path: Path, data: bytes) -> None:
        write(path, data[:-1] if path.name.startswith("arrays-") else data)

    monkeypatch.setattr("meanq.rundir.checkpoint.write_atomically", lossy)
    with pytest.raises(OSError, match="cannot be read back"):
        make_run(tmp_path, *SMALL).train(SilentReporter())
    assert Checkpoints(directory).steps() == [50, 100], "the good ones stay"


@pytest.mark.parametrize("change", ["optimiser", "threads", "record", "files"])
def test_a_checkpoint_with_right_checksums_and_wrong_contents_is_one_line(change: str, tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    for path in (directory / "checkpoint").glob("state-*.json"):
        content = json.loads(path.read_bytes().splitlines()[0])
        if change == "files":
            content["files"] = ["frames"]
        elif change == "optimiser":
            content["state"] = {"versions": {"device": "cpu"}, "compiled": False, "threads": 1}
        else:
            content["state"][change] = {"x": "y"}
        line = json.dumps(content).encode()
        path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        make_run(tmp_path, *SMALL).train(SilentReporter())
    assert "\n" not in str(caught.value) and "remove" in str(caught.value)


def test_without_a_good_checkpoint_it_says_so_and_touches_nothing(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    for path in (directory / "checkpoint").glob("arrays-*"):
        damage(path, "flipped")
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != "status.json"}
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no checkpoint can be read .* remove .* to start"):
            make_run(tmp_path, *SMALL).train(SilentReporter())
    for path, content in before.items():
        assert path.read_bytes() == content, path
    for path in (directory / "checkpoint").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="has lost the checkpoint of step 100"):
        make_run(tmp_path, *SMALL).train(SilentReporter())


def test_a_table_shorter_than_the_checkpoint_knows_is_an_error(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    table = directory / "training.csv"
    table.write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[:1]))
    with pytest.raises(ConfigError, match=r"training.csv has 0 rows where the checkpoint knows of 1"):
        make_run(tmp_path, *SMALL).train(SilentReporter())


def test_a_run_of_a_version_with_fewer_columns_goes_on(finished: Path, tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    timings = directory / "timings.csv"
    before = [line.rpartition(",")[0] for line in timings.read_text().splitlines()]
    timings.write_text("".join(f"{line}\n" for line in before))
    make_run(tmp_path, *SMALL).train(SilentReporter())
    assert_same(directory, finished)
    lines = timings.read_text().splitlines()
    assert lines[0] == (finished / "timings.csv").read_text().splitlines()[0]
    assert lines[1] == f"{before[1]}," and not lines[-1].endswith(","), "not known then, known now"


class Malicious:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.slow
def test_nothing_in_a_directory_is_executed(tmp_path: Path) -> None:
    import pickle

    proof = tmp_path / "executed"
    poison = pickle.dumps(Malicious(proof))
    pickle.loads(poison)
    assert proof.exists(), "the poison works"
    proof.unlink()
    directory = crashed(tmp_path / "runs", 130).directory
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        if path.name == "probes.npz":
            np.savez(path, step=np.array([Malicious(proof)]), q=np.zeros(1))
        else:
            path.write_bytes(poison)
        with pytest.raises((CheckpointError, ConfigError, RuntimeError, ValueError)):
            make_run(tmp_path / "runs", *SMALL).train(Stop(140))
        assert not proof.exists(), path
        path.write_bytes(content)


@pytest.mark.parametrize("multiple", [1e3, 1e30])
def test_divergence_ends_the_run_before_its_checkpoint_is_replaced(multiple: float, tmp_path: Path) -> None:
    run = make_run(tmp_path, *SMALL)

    class Spoil(Stop):
        def progress(self, step: int, *rest: Any) -> None:
            if step == 110:  # a weight that the loss does not notice, or one that it does
                name = "hidden.weight" if multiple > 1e10 else next(iter(run.loop.agent.online))
                run.loop.agent.online[name].data.view(-1)[0] = float("nan") if multiple > 1e10 else float("inf")

    with pytest.raises(DivergedError, match=r"step 1[0-5]\d: .* not a finite number.*algo.learning_rate"):
        run.train(Spoil(-1))
    status = json.loads((run.directory / "status.json").read_text())
    assert status["state"] == "failed" and "not a finite number" in status["reason"]
    assert (status["checkpoint"], Checkpoints(run.directory).steps()) == (100, [50, 100])


def test_a_learning_rate_that_explodes_is_noticed_at_the_next_update(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SMALL, "algo.learning_rate=1e38")
    with pytest.raises(DivergedError, match=r"step 6\d: the loss is not a finite number"):
        run.train(SilentReporter())


def hold(root: str, ready: Any) -> None:
    run = make_run(Path(root), *SMALL)
    run._record.open()
    ready.set()
    signal.pause()


def test_two_processes_never_train_in_the_same_directory(finished: Path, tmp_path: Path) -> None:
    ready = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path), ready))
    holder.start()
    assert ready.wait(60)
    run = make_run(tmp_path, *SMALL)
    assert lock_holder(run.directory) == {"host": os.uname().nodename, "pid": holder.pid}
    before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    with pytest.raises(BusyError, match=f"is being trained by process {holder.pid} on"):
        run.train(SilentReporter())
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == before
    holder.kill()  # -9: nobody can clean up
    holder.join()
    assert lock_holder(run.directory) is None
    run.train(SilentReporter())
    assert_same(run.directory, finished)


def test_a_job_that_was_queued_again_waits_for_the_end_of_its_former_self(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path), ready))
    holder.start()
    assert ready.wait(60)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr("time.sleep", lambda seconds: (holder.kill(), holder.join()))
    run = make_run(tmp_path, *SMALL)
    run.train(SilentReporter())
    assert_same(run.directory, finished)


def test_within_a_process_too(tmp_path: Path) -> None:
    one, two = make_run(tmp_path, *SMALL), make_run(tmp_path, *SMALL)
    one._record.open()
    assert lock_holder(one.directory) == {"host": os.uname().nodename, "pid": os.getpid()}
    with pytest.raises(BusyError, match="by this very process"):
        two.train(SilentReporter())
    one._record.close()
    assert lock_holder(one.directory) is None
    two._record.open()
    two._record.close()


def test_the_disk_it_takes_is_bounded(tmp_path: Path) -> None:
    """Frames that the ring has overwritten go; at most two checkpoints stay."""
    sizes = []

    class Measuring(SilentReporter):
        def progress(self, step: int, *rest: Any) -> None:
            if step % 50 == 1 and step > 1:
                files = sorted(path.name for path in (run.directory / "checkpoint").iterdir())
                sizes.append((len(files), sum(f.startswith("state-") for f in files)))

    run = make_run(tmp_path, *SMALL, "total_steps=600", "algo.replay_capacity=100", "checkpoint.keep=true")
    run.train(Measuring())
    assert sizes[0] == (4, 1) and sizes[-1] == sizes[-2] == sizes[-3] and sizes[-1][1] == 2
    assert sizes[-1][0] <= 2 * 2 + 2 * 4
    assert Checkpoints(run.directory).steps() == [550, 600], "checkpoint.keep=true"


def test_a_full_disk_leaves_the_tables_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path) -> None:
    run = make_run(tmp_path, *SMALL)
    write = os.fsync
    written = 0

    def full(handle: int) -> None:
        nonlocal written
        written += 1
        if written > 25:
            raise OSError(28, "No space left on device")
        write(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run.train(SilentReporter())
    monkeypatch.undo()
    rows = (run.directory / "training.csv").read_text().splitlines()
    assert len({row.count(",") for row in rows}) == 1
    status = read_run(run.directory)
    assert (status.state, status.eta_seconds) == ("failed", None) and "No space left" in str(status.reason)
    train(tmp_path, *SMALL)
    assert_same(run.directory, finished)


def test_the_number_of_threads_is_that_of_the_first_start(tmp_path: Path) -> None:
    overrides = [o for o in SMALL if not o.startswith("threads")]
    run = make_run(tmp_path, *overrides)
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="crash"):
        run.train(Stop(60))
    run = make_run(tmp_path, *overrides)
    torch.set_num_threads(1)
    with pytest.raises(RuntimeError, match="crash"):
        run.train(Stop(70))
    assert torch.get_num_threads() == 2


def test_what_was_otherwise_before_it_was_resumed_is_said_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    now = circumstances.circumstances()
    for step, commit in ((60, "first"), (130, "second")):
        monkeypatch.setattr(circumstances, "_git_commit", lambda commit=commit: commit)
        crashed(tmp_path, step)
    monkeypatch.setattr(circumstances, "_git_commit", lambda: "third")
    reporter = Stop(-1)
    run = make_run(tmp_path, *SMALL)
    run.train(reporter)
    assert reporter.warnings == ["saved with commit second and resumed with third: results may differ"]
    meta = json.loads((run.directory / "meta.json").read_text())
    assert (meta["commit"], meta["resumed"], meta["versions"]) == ("third", [50, 100], now["versions"])
    assert meta["earlier"] == [{"to_step": 50, "commit": "first"}, {"to_step": 100, "commit": "second"}]
    assert_same(run.directory, finished)


def test_a_run_of_another_device_is_an_error_before_anything_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = crashed(tmp_path, 60)
    before = {path.name: path.read_bytes() for path in run.directory.iterdir() if path.is_file()}
    versions = Session._versions
    monkeypatch.setattr(Session, "_versions", lambda self: {**versions(self), "device": "cuda"})
    with pytest.raises(CheckpointError, match="device=auto: the run began on cpu and cannot go on on cuda"):
        make_run(tmp_path, *SMALL).train(SilentReporter())
    after = {path.name: path.read_bytes() for path in run.directory.iterdir() if path.is_file()}
    assert {name for name in before if after[name] != before[name]} <= {"status.json"}


def test_how_often_it_is_saved_is_not_part_of_what_it_is(finished: Path, tmp_path: Path) -> None:
    directory = crashed(tmp_path, 130).directory
    train(tmp_path, *SHORT, "checkpoint.every=7")
    assert_same(directory, finished)


def test_an_environment_that_cannot_be_saved_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, *SMALL)

    def cannot() -> Any:
        raise NotImplementedError("MinAtar cannot save its state")

    monkeypatch.setattr(run.loop.env, "state_dict", cannot)
    reporter = Stop(130)
    with pytest.raises(RuntimeError, match="crash"):
        run.train(reporter)
    assert "no checkpoints" in reporter.warnings[0]
    assert not (run.directory / "checkpoint").exists()
    reporter = Stop(-1)
    make_run(tmp_path, *SMALL).train(reporter)
    assert reporter.first == 0


STATE = {
    "none": None,
    "numbers": [1, 2**127, 0.1, float("inf"), True],
    "text": "a $b",
    "tuple": (1, [2.5]),
    "scalars": [np.int64(-3), np.float32(0.1), np.bool_(True)],
    "arrays": {"a": np.arange(6).reshape(2, 3)[:, ::2], "empty": np.zeros((0, 4), np.uint8), "number": np.array(2.5)},
    "tensors": [torch.randn(3, 2).T, torch.tensor(1.5), torch.zeros(0, dtype=torch.uint8)],
    "bytes": b"\x00\xff",
    "nested": {"generator": np.random.default_rng(3).bit_generator.state},
}


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, (np.ndarray, torch.Tensor)):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    return bool(one == two)


def test_a_state_survives_the_way_to_the_disk() -> None:
    from safetensors.numpy import load, save

    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_to_plain(STATE, "", arrays))
    assert same(_from_plain(json.loads(text), load(save(arrays))), STATE)


@pytest.mark.parametrize("bad", [{1: 2}, {"$array": 1}, {"a": {1, 2}}, [object()], {"x": np.array([object()])}])
def test_what_is_no_plain_data_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"keys of a state must be plain strings|a state cannot hold"):
        _to_plain(bad, "", {})
