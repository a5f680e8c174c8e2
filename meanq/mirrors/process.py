"""Mirror a run directory to W&B or TensorBoard.

The run directory is the truth; a mirror is a function of its files (points.py). It is made by a process of its own:
the library of W&B waits for the network, also when the interpreter ends, and replaces `sys.exit` and `sys.excepthook`.
Training only says through a pipe up to which step its files are complete, and never waits for an answer. The process
ignores the signals meant for training and ends when the pipe closes, so also when training is killed.

    python -m meanq.mirrors.process DIRECTORY SETTINGS     what training starts; reads steps and then a state from stdin
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from meanq.config.errors import ConfigError
from meanq.config.fields import is_identity
from meanq.config.schema import WANDB_MODES, LoggerConfig
from meanq.mirrors.points import Point, read_config, read_points
from meanq.rundir.files import read_status, write_atomically
from meanq.rundir.layout import META, WEIGHTS

LOG, DONE = "mirror.log", "mirror.json"
WANDB_DIRECTORY, TENSORBOARD_DIRECTORY = "wandb", "tensorboard"
STATES = ("finished", "failed", "interrupted")

# As W&B itself ends runs: 1 is shown as failed, 255 is what it records after Ctrl-C.
_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}
_PROBLEM = "problem: "
_LONGEST_GROUP, _LONGEST_TAG = 128, 64  # W&B's limits
_INIT_SECONDS = 90.0


class Mirror(Protocol):
    """What training knows of a mirror. Nothing here raises or waits, but `close`, which waits a bounded time."""

    def update(self, step: int) -> None:
        """All rows up to this step are on disk."""

    def close(self, state: str) -> None:
        """The run is finished, failed or interrupted."""


class Sink(Protocol):
    """Where points go."""

    position: int  # the first step that is not there yet

    def log(self, point: Point) -> None:
        """Add the point of a later step."""

    def close(self, state: str) -> None:
        """Complete it."""


def make_mirror(logger: LoggerConfig, directory: Path) -> Mirror | None:
    """Start mirroring a directory that has its configuration; None where nothing is to be mirrored."""
    if logger.name == "files" or (logger.name == "wandb" and _mode(logger) == "disabled"):
        return None
    try:
        return ProcessMirror(logger, directory)
    except OSError as error:
        _warn(logger, directory, f"could not be started ({error})")
        return None


class ProcessMirror:
    """The training process's end of the pipe."""

    def __init__(self, logger: LoggerConfig, directory: Path) -> None:
        self._logger, self._directory = logger, directory
        self._log = directory / LOG
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("WANDB_SERVICE", None)  # W&B's helper of a process above us, which ends when that one does
        settings = json.dumps(asdict(logger))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "meanq.mirrors.process", str(directory.absolute()), settings],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for training
            )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        self._warned = False

    def update(self, step: int) -> None:
        """Poke; a mirror that is behind catches up with a later poke."""
        self._send(str(step))
        if self._process.poll():
            self._warn_once(self._problem())

    def close(self, state: str) -> None:
        """Wait until the mirror is complete, but no longer than `logger.finish_seconds`."""
        if self._pipe.closed:
            return
        self._send(state)
        try:
            self._pipe.close()
            if self._process.wait(self._logger.finish_seconds):
                self._warn_once(self._problem())
            elif self._log.stat().st_size == 0:
                self._log.unlink()
        except subprocess.TimeoutExpired:
            self._warn_once(f"was not complete after logger.finish_seconds={self._logger.finish_seconds:g}")
        except OSError as error:
            self._warn_once(str(error))
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # full because the reader is slow, or closed because it failed
            os.write(self._pipe.fileno(), f"{line}\n".encode())

    def _problem(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.startswith(_PROBLEM)]
            if lines:
                return lines[-1].removeprefix(_PROBLEM)
        return f"ended with code {self._process.returncode}; see {self._log}"

    def _warn_once(self, problem: str) -> None:
        if not self._warned:
            _warn(self._logger, self._directory, problem)
        self._warned = True


def _warn(logger: LoggerConfig, directory: Path, problem: str) -> None:
    remedy = f"; later: python -m meanq.wandb_upload {directory}" if logger.name == "wandb" else ""
    print(
        f"meanq: logger={logger.name}: {problem}. Training is not affected, its files are complete{remedy}",
        file=sys.stderr,
    )


def follow(directory: Path, logger: LoggerConfig, reports: Iterator[str]) -> None:
    """Log each point once, as soon as training reports that it is complete, and close with the state it reports."""
    sink = make_sink(logger, directory)
    through, state = -1, ""
    for report in reports:
        if report.isdigit():
            through = max(through, int(report))
            _log(sink, directory, through)
        else:
            state = report
    if not state:  # training was killed, or the pipe was full at its end
        state = str(read_status(directory).get("state"))
    if state == "finished":
        _log(sink, directory, math.inf)
    # Else the last step may lack the rows of some table, which a resumed run would then add to a step already logged.
    sink.close(state if state in STATES else "interrupted")


def _log(sink: Sink, directory: Path, through: float) -> None:
    for point in read_points(directory):
        if sink.position <= point.step <= through:
            sink.log(point)


def make_sink(logger: LoggerConfig, directory: Path) -> Sink:
    """By the logger's name."""
    return TensorboardSink(directory) if logger.name == "tensorboard" else WandbSink(logger, directory)


class TensorboardSink:
    """Event files in `tensorboard/`, always written from the first row on: event files cannot be cut back."""

    def __init__(self, directory: Path) -> None:
        from tensorboardX import SummaryWriter

        shutil.rmtree(directory / TENSORBOARD_DIRECTORY, ignore_errors=True)
        self._writer = SummaryWriter(str(directory / TENSORBOARD_DIRECTORY), write_to_disk=True)
        self.position = 0

    def log(self, point: Point) -> None:
        """Scalars and histograms under the same names as in W&B."""
        for name, value in point.scalars.items():
            self._writer.add_scalar(name, value, point.step)
        for name, values in point.histograms.items():
            self._writer.add_histogram(name, values, point.step)
        self._writer.flush()
        self.position = point.step + 1

    def close(self, state: str) -> None:
        """TensorBoard knows no states."""
        self._writer.close()


class WandbSink:
    """One W&B run per run directory.

    Offline, W&B cannot resume: a second directory would appear, and syncing both could overwrite. So the one of before
    is removed and written again from the first row. Online, W&B says which step it has.
    """

    def __init__(self, logger: LoggerConfig, directory: Path) -> None:
        self._logger, self._directory = logger, directory
        quiet_wandb(directory)
        import wandb

        mode = resolve_mode(logger)
        config = read_config(directory)
        self.id = run_id(config)
        self._destination = destination(logger, mode)
        _write_done(directory, {where: what for where, what in _done(directory).items() if where != self._destination})
        if mode == "offline":
            shutil.rmtree(directory / WANDB_DIRECTORY, ignore_errors=True)
        settings = wandb.Settings(
            silent=True,
            quiet=True,
            console="off",
            symlink=False,
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=_INIT_SECONDS,
            finish_timeout=logger.finish_seconds,
            finish_timeout_raises=True,
        )
        self._run = wandb.init(
            project=logger.project,
            entity=logger.entity,
            mode=mode,
            id=self.id,
            resume="allow",
            group=_short(group_name(config), _LONGEST_GROUP),
            name=f"seed_{config['seed']}",
            tags=sorted(
                {_short(t, _LONGEST_TAG) for t in (config["algo"]["name"], config["env"]["name"], *logger.tags)}
            ),
            config={**config, "meta": _meta(directory)},
            dir=str(directory),
            reinit="create_new",
            settings=settings,
        )
        self.position = self._run.starting_step if mode == "online" else 0

    def log(self, point: Point) -> None:
        """W&B's step is the interaction."""
        import wandb

        histograms = {name: wandb.Histogram(values) for name, values in point.histograms.items()}  # type: ignore
        self._run.log({**point.scalars, **histograms}, step=point.step)
        self.position = point.step + 1

    def close(self, state: str) -> None:
        """Upload the weights where asked for, finish, and note that it is done."""
        import wandb

        weights = self._directory / WEIGHTS
        if self._logger.weights and state == "finished" and weights.exists():
            artifact = wandb.Artifact(f"weights-{self.id}", type="model", metadata={"step": self.position - 1})
            artifact.add_file(str(weights), policy="immutable", skip_cache=True)  # no copies outside the directory
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=_EXIT_CODES[state])
        done = {**_done(self._directory), self._destination: {"state": state, "step": self.position - 1}}
        _write_done(self._directory, done)
        if self._destination.startswith("online"):  # lest `wandb sync` uploads the offline copy over it
            for offline in (self._directory / WANDB_DIRECTORY).glob("offline-run-*/*.wandb"):
                offline.with_suffix(".wandb.synced").touch()


def quiet_wandb(directory: Path) -> None:
    """Before W&B is imported: no banners, and no files outside this directory."""
    cache = str(directory / WANDB_DIRECTORY / "cache")
    os.environ["WANDB_SILENT"] = "true"
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ.setdefault(name, cache)


def _mode(logger: LoggerConfig) -> str:
    """`auto` gives way to WANDB_MODE."""
    wished = os.environ.get("WANDB_MODE", "auto")
    return wished if logger.mode == "auto" and wished in WANDB_MODES else logger.mode


def resolve_mode(logger: LoggerConfig) -> Literal["online", "offline"]:
    """`auto`, where WANDB_MODE says nothing: online where there is an API key."""
    mode = _mode(logger)
    return "online" if mode == "online" or (mode == "auto" and has_key()) else "offline"


def has_key() -> bool:
    """Whether W&B finds credentials; asks neither a person nor the network."""
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.Error as error:
        raise ConfigError(f"W&B cannot use its API key ({' '.join(str(error).split())}); run `wandb login`") from None


def destination(logger: LoggerConfig, mode: str) -> str:
    """What tells two mirrors of one run apart."""
    host = os.environ.get("WANDB_BASE_URL", "default host") if mode == "online" else "here"
    return f"{mode}, {host}, {logger.entity or 'default entity'}/{logger.project}"


def is_mirrored(directory: Path, where: str, state: str) -> bool:
    """Whether the files as they are now have been mirrored there, to the end."""
    points = read_points(directory)
    return _done(directory).get(where) == {"state": state, "step": points[-1].step if points else -1}


def run_id(config: Mapping[str, Any]) -> str:
    """The same on every machine, below every root and at any time: what the run is, and a hash of its fields."""
    identity = {name: value for name, value in config.items() if is_identity(name)}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{group_name(config)}-{config['seed']}")
    return f"{readable[:80]}-{digest}"


def group_name(config: Mapping[str, Any]) -> str:
    """What the seeds of one method in one environment share."""
    return f"{config['study']}/{config['env']['name']}/{config['label']}"


def _short(text: str, longest: int) -> str:
    """Cut, with a hash so that two long names stay two."""
    if len(text) <= longest:
        return text
    return f"{text[: longest - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _meta(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / META).read_text())
    except (OSError, ValueError):
        return {}


def _done(directory: Path) -> dict[str, Any]:
    try:
        done = json.loads((directory / DONE).read_text())
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) else {}


def _write_done(directory: Path, done: Mapping[str, Any]) -> None:
    write_atomically(directory / DONE, (json.dumps(done, indent=2) + "\n").encode())


def _reports(descriptor: int) -> Iterator[str]:
    """Lines from a pipe; of steps that have piled up only the last."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        reports = [line.decode() for line in lines]
        steps = [report for report in reports if report.isdigit()]
        yield from steps[-1:]
        yield from (report for report in reports if not report.isdigit())


def main(arguments: list[str]) -> int:
    """The mirror's process."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.nice(10)  # training comes first
    try:
        follow(Path(arguments[0]), LoggerConfig(**json.loads(arguments[1])), _reports(0))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is training's to report, in a line
        text = " ".join(str(error).split())
        print(f"{_PROBLEM}{type(error).__name__}{': ' if text else ''}{text}", flush=True)
        os._exit(1)  # at a plain exit W&B would go on trying
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
