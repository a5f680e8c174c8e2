"""The commands that make runs again, from the configurations that were recorded.

A run records its configuration resolved, not the words that made it. `python -m meanq.run` composes one from an
algorithm, an environment and a network, so the overrides to write are the fields in which the record differs from what
this version of the package composes from the same three. Hydra takes a fifth of a second for that; a composition holds
references, not values, so each algorithm, environment and network is composed once, not each combination of them.
"""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.runs import Run, RunSet
from meanq.config.fields import ABSENT, field_value, flatten, is_identity

# Named by the command itself, or no part of what is computed.
_NOT_WRITTEN = ("seed", "label", "study", "device", "threads")
_GROUPS = ("algo", "env", "network")
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_REFERENCE = re.compile(r"\$\{(\.?\w+(?:\.\w+)*)\}")
_FIELD = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "nan", "inf"}  # which Hydra does not take for text


@dataclass(frozen=True)
class Command:
    """What makes the runs of a label again."""

    label: str
    envs: tuple[str, ...]
    text: str  # the command, or why there is none


def commands(found: RunSet) -> list[Command]:
    """One for each label, or several where its runs have more in common within environments than between them."""
    groups = found.groups()
    chosen = {key: _choices(runs[0].config) for key, runs in groups.items()}
    defaults = _Defaults(chosen.values())
    alike: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for (env, label), runs in groups.items():
        before, after = _words(runs, chosen[env, label], defaults)
        alike[label, before, after].append((env, chosen[env, label]["env"]))
    made = []
    for (label, before, after), envs in alike.items():
        text = f"{before} env={','.join(choice for _, choice in envs)} {after}" if after else before
        made.append(Command(label, tuple(env for env, _ in envs), text))
    return made


def _words(runs: Sequence[Run], choices: Mapping[str, str], defaults: "_Defaults") -> tuple[str, str]:
    """What stands before and after env=...; or why there is no command, and nothing."""
    config = runs[0].config
    base = defaults.compose(choices)
    if isinstance(base, str):
        return base, ""
    overrides = []
    recorded = flatten(config)
    for name in dict.fromkeys([*recorded, *base]):
        value = field_value(recorded, name)
        if name in _NOT_WRITTEN or not is_identity(name) or value in (base.get(name, ABSENT), ABSENT):
            continue
        if not _FIELD.fullmatch(name):
            return f"no command: {name} is no field that can be overridden", ""
        overrides.append(f"{'' if name in base else '+'}{name}={_hydra(value)}")
    if type(config.get("threads")) is int:
        overrides.append(f"threads={config['threads']}")
    place = [f"study={_hydra(config['study'])}"] if isinstance(config.get("study"), str) else []
    place.append(f"label={_hydra(config['label'])}")
    seeds = _ranges([run.seed for run in runs])
    after = [f"network={choices['network']}", f"seed={seeds}", *overrides, *place]
    return f"python -m meanq.run -m algo={choices['algo']}", " ".join(map(shlex.quote, after))


def _choices(config: Mapping[str, Any]) -> dict[str, str]:
    """The files of conf/ that a configuration comes from."""
    env = config["env"]
    kind, name = str(env.get("kind")), env["name"]
    by_kind = {"atari": name, "minatar": f"minatar/{env.get('id')}", "chain": "chain", "gymnasium": "gymnasium"}
    network = config.get("network")
    return {
        "algo": config["algo"]["name"],
        "env": by_kind.get(kind, "custom"),
        "network": str(network.get("name")) if isinstance(network, Mapping) else "",
    }


class _Defaults:
    """What the package composes, of the algorithms, environments and networks that runs have."""

    def __init__(self, wanted: Iterable[Mapping[str, str]]) -> None:
        from meanq.config.schema import CONFIG_DIR

        choices = list(wanted)
        self._missing: dict[tuple[str, str], str] = {}
        self._nodes: dict[tuple[str, str], Any] = {}
        self._rest: dict[str, Any] = {}
        names: dict[str, list[str]] = {}
        for group in _GROUPS:
            names[group] = []
            for name in sorted({choice[group] for choice in choices}):
                plain = re.fullmatch(r"\w+(/\w+)?", name)
                if plain and (CONFIG_DIR / group / f"{name}.yaml").is_file():
                    names[group].append(name)
                else:
                    self._missing[group, name] = f"no command: this version of meanq has no {group}={name}"
        if all(names.values()):
            self._load(CONFIG_DIR, names)

    def _load(self, directory: Path, names: Mapping[str, Sequence[str]]) -> None:
        from hydra import compose, initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from omegaconf import OmegaConf

        from meanq.config.schema import Config

        ConfigStore.instance().store(name="schema", node=Config)
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(directory.absolute()), version_base="1.3"):
            for i in range(max(map(len, names.values()))):
                picked = {group: found[i % len(found)] for group, found in names.items()}
                composed = compose("config", [f"{group}={name}" for group, name in picked.items()])
                self._rest = OmegaConf.to_container(composed)  # type: ignore[assignment]
                self._nodes |= {(group, name): self._rest[group] for group, name in picked.items()}

    def compose(self, choices: Mapping[str, str]) -> dict[str, Any] | str:
        """The fields without overrides, every reference resolved; or why there are none."""
        from omegaconf import OmegaConf

        for group in _GROUPS:
            if (group, choices[group]) in self._missing:
                return self._missing[group, choices[group]]
        nodes = {group: self._nodes[group, choices[group]] for group in _GROUPS}
        config = {**self._rest, **nodes}
        fields = {name: _resolve(value, name, config) for name, value in flatten(config).items()}
        if not any(isinstance(value, str) and "${" in value for value in fields.values()):
            return fields
        # More than references to fields: ten times as slow.
        return flatten(OmegaConf.to_container(OmegaConf.create(config), resolve=True))


def _resolve(value: Any, name: str, config: Mapping[str, Any]) -> Any:
    """A value with its references to other fields, ${env.name} or ${.sibling}, replaced; innermost first."""
    while isinstance(value, str) and (found := _REFERENCE.search(value)):
        path = found[1] if not found[1].startswith(".") else f"{name.rpartition('.')[0]}{found[1]}"
        target: Any = config
        for part in path.split("."):
            target = target.get(part) if isinstance(target, Mapping) else None
        value = target if found[0] == value else value.replace(found[0], str(target))
    return value


def _hydra(value: Any) -> str:
    """A value as Hydra's command line reads it."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + (r"\'" if m[2] else ""), value)
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_hydra(str(k))}:{_hydra(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return json.dumps(value)


def _ranges(numbers: Iterable[int]) -> str:
    """0,1,2,7 as 0-2,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
