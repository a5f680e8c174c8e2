"""The W&B logger: one W&B run per run directory."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from meanq.config.errors import ConfigError
from meanq.config.fields import is_identity
from meanq.config.schema import WANDB_MODES, LoggerConfig
from meanq.mirrors.sink import Point, Sink
from meanq.rundir.files import write_json
from meanq.rundir.layout import META, MIRROR_STATE, WANDB_DIR, WEIGHTS
from meanq.rundir.reader import open_file, read_config, read_json_if_valid

# W&B shows exit code 1 as failed and records 255 after Ctrl-C.
_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}
_MAX_GROUP = 128  # W&B's limit
_WRITTEN = re.compile(r"(offline-)?run-.+|cache")  # W&B's directories
# W&B gets our rows, and neither output nor code, git state, system metrics or lists of packages.
_ON = ("silent", "disable_code", "disable_git", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
_SETTINGS: Any = {"console": "off", **dict.fromkeys(_ON, True), "x_save_requirements": False, "symlink": False}


class WandbSink(Sink):
    """One W&B run.

    W&B's earlier files are removed, so that `wandb sync` does not upload them over these. Offline, W&B cannot resume,
    so the run is written again from the first row. Online, W&B reports the step it has.
    """

    def __init__(self, logger: LoggerConfig, directory: Path) -> None:
        self._logger, self._directory = logger, directory
        # Before W&B is imported: no banners, and no files outside this directory.
        os.environ["WANDB_SILENT"] = "true"
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            os.environ.setdefault(name, str(directory / WANDB_DIR / "cache"))
        import wandb

        mode = self._mode = resolve_mode(logger)
        config = read_config(directory)
        self.id = run_id(config)
        self._destination = destination(logger, mode)
        self._note_done(None)
        _remove_earlier(directory / WANDB_DIR)
        timeout: Any = {"finish_timeout": logger.finish_seconds, "finish_timeout_raises": True}
        self._run = wandb.init(
            project=logger.project,
            entity=logger.entity,
            mode=mode,
            id=self.id,
            resume="allow",
            group=_shorten(group_name(config)),
            name=f"seed_{config['seed']}",
            tags=sorted({config["algo"]["name"], config["env"]["name"], *logger.tags}),
            config={**config, **_for_benchmarks(config), "meta": read_json_if_valid(directory / META)},
            dir=str(directory),
            settings=wandb.Settings(**_SETTINGS, **timeout),
        )
        self.position = self._run.starting_step if mode == "online" else 0

    def log(self, point: Point) -> None:
        """Log a point; W&B's step is the interaction, and so is `global_step`, which Open RL Benchmark reads."""
        import wandb

        histograms = {name: wandb.Histogram(values) for name, values in point.histograms.items()}  # type: ignore
        self._run.log({"global_step": point.step, **point.scalars, **histograms}, step=point.step)
        self.position = point.step + 1

    def close(self, state: str) -> None:
        """Upload the weights where asked for, finish, and note that it is done."""
        import wandb

        weights = self._directory / WEIGHTS
        if self._logger.weights and state == "finished" and os.path.lexists(weights):
            with open_file(weights):  # no link: W&B would get what it leads to
                pass
            artifact = wandb.Artifact(f"weights-{self.id}", type="model", metadata={"step": self.position - 1})
            artifact.add_file(str(weights), policy="immutable", skip_cache=True)  # no copies outside the directory
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=_EXIT_CODES[state])
        self._note_done({"state": state, "step": self.position - 1})

    def _note_done(self, done: Mapping[str, Any] | None) -> None:
        """Store in mirror.json how far this destination is complete; None: not at all."""
        path = self._directory / MIRROR_STATE
        noted = {where: what for where, what in read_json_if_valid(path).items() if where != self._destination}
        write_json(path, noted if done is None else {**noted, self._destination: done})

    def note(self) -> str:
        """Say where an offline copy is, and how to upload it."""
        if self._mode == "online":
            return ""
        why = "no API key, so offline" if _mode(self._logger) == "auto" else "offline"
        files, login = self._directory / WANDB_DIR, "wandb login, then " if why != "offline" else ""
        return f"W&B: {why}, in {files}; to upload it later: {login}meanq upload {self._directory}"

    @classmethod
    def enabled(cls, logger: LoggerConfig) -> bool:
        """False where `logger.mode` or WANDB_MODE is disabled."""
        return _mode(logger) != "disabled"

    @classmethod
    def remedy(cls, directory: Path) -> str:
        """Name the command that uploads the run later."""
        return f"; later: meanq upload {directory}"


def _remove_earlier(place: Path) -> None:
    """Remove what W&B wrote here, and nothing of others."""
    if place.is_symlink():
        raise OSError(f"{place} is a link; replace it with the directory that it leads to")
    for path in place.iterdir() if place.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and _WRITTEN.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def is_mirrored(directory: Path, where: str, state: str, last_step: int) -> bool:
    """Whether the destination has everything up to the last step in the files, -1 if there is none."""
    expected = {"state": state, "step": last_step}
    return read_json_if_valid(directory / MIRROR_STATE).get(where) == expected


def destination(logger: LoggerConfig, mode: str) -> str:
    """Name the place a run is copied to, as in mirror.json."""
    host = os.environ.get("WANDB_BASE_URL", "default host") if mode == "online" else "here"
    return f"{mode}, {host}, {logger.entity or 'default entity'}/{logger.project}"


def resolve_mode(logger: LoggerConfig) -> Literal["online", "offline"]:
    """Resolve `auto`: WANDB_MODE decides or, without it, whether there is an API key."""
    mode = _mode(logger)
    return "online" if mode == "online" or (mode == "auto" and has_key()) else "offline"


def has_key() -> bool:
    """Whether W&B finds credentials; neither prompts nor uses the network."""
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.Error as error:
        raise ConfigError(f"W&B cannot use its API key ({' '.join(str(error).split())}); run `wandb login`") from None


def run_id(config: Mapping[str, Any]) -> str:
    """Return the id of a run: names and a hash of its fields, so equal on every machine and below every root."""
    identity = {name: value for name, value in config.items() if is_identity(name)}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{group_name(config)}-{config['seed']}")
    return f"{readable[:80]}-{digest}"


def _for_benchmarks(config: Mapping[str, Any]) -> dict[str, str]:
    """Fields at the top of the configuration by which Open RL Benchmark finds runs, beside `seed`."""
    return {"env_id": config["env"]["name"], "exp_name": config["label"]}


def group_name(config: Mapping[str, Any]) -> str:
    """Name what the seeds of one method in one environment share."""
    return f"{config['study']}/{config['env']['name']}/{config['label']}"


def _mode(logger: LoggerConfig) -> str:
    wished = os.environ.get("WANDB_MODE", "auto")
    return wished if logger.mode == "auto" and wished in WANDB_MODES else logger.mode


def _shorten(group: str) -> str:
    """Cut a long name, with a hash so that two long names stay different."""
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]
    return group if len(group) <= _MAX_GROUP else f"{group[: _MAX_GROUP - 9]}~{digest}"
