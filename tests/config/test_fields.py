"""Each field declares its meaning, bounds and roles. The roles are pinned: paths and resume depend on them."""

from dataclasses import is_dataclass
from typing import Any

import pytest
from omegaconf import OmegaConf

from meanq.config.checks import check_bounds
from meanq.config.errors import ConfigError
from meanq.config.fields import flatten, in_label, is_compared, is_content, is_identity, walk
from meanq.config.schema import Config, ConvolutionConfig, LoggerConfig, NetworkConfig
from meanq.config.setting import Setting, setting_of

NOT_IDENTITY = {
    *("root", "logger", "checkpoint", "replay_on_device", "cache_targets", "algo.family"),
    *("env.vanilla", "env.main", "env.sunrise", "env.canonical", "env.dopamine"),
}
NOT_COMPARED = NOT_IDENTITY | {
    *("seed", "study", "log_every", "threads", "device", "compile"),
    *("env.evaluate_every", "env.probe_every", "env.probe_states", "env.reference"),
}
NOT_IN_LABEL = {
    *("algo", "env", "env.id", "seed", "study", "label", "root", "logger", "device", "threads", "compile"),
    *("replay_on_device", "cache_targets"),
    # a label names what changes learning; these only measure it
    *("evaluation.every", "evaluation.episodes", "probe", "checkpoint", "log_every"),
    *("env.evaluate_every", "env.probe_every", "env.probe_states"),
    *("env.random_score", "env.random_score_500k", "env.reference_score", "env.reference"),
}
NOT_IN_LABEL_BELOW = ("hydra.", "hydra/", "logger.", "checkpoint.", "probe.")
# Fields of the schema; options; fields that older versions had or later ones may have; groups and fields of Hydra.
NAMES = [name for name, _ in walk()] + [
    *("env.options.noop_max", "algo.forgotten", "forgotten", "logger.forgotten", "env.main.forgotten", "protocol"),
    *("hydra/launcher", "hydra.launcher.partition", "network@_global_.network", "env/minatar"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_roles_of_fields_are_pinned(name: str) -> None:
    parts = name.split(".")
    blocks_and_itself = {".".join(parts[: i + 1]) for i in range(len(parts))}
    assert is_identity(name) == (not blocks_and_itself & NOT_IDENTITY)
    assert is_compared(name) == (not blocks_and_itself & NOT_COMPARED)
    assert in_label(name) == (name not in NOT_IN_LABEL and not name.startswith(NOT_IN_LABEL_BELOW))
    assert is_content(name) == (name not in ("study", "label"))


def test_walk_names_every_field_once() -> None:
    names = [name for name, _ in walk()]
    assert len(names) == len(set(names))
    empty = {"env.options"}  # a flattened empty mapping keeps its own name
    leaves = {name for name, field in walk() if not is_dataclass(field.type) and "[]" not in name}
    assert leaves == flatten(OmegaConf.to_container(OmegaConf.structured(Config))).keys() | empty
    assert {"algo.epsilon.start", "env.main.multi_step", "network.convolutions[].kernel"} <= set(names)


def test_every_field_says_what_it_means() -> None:
    for name, field in walk():
        assert 3 <= len(setting_of(field).meaning) <= 90, name


@pytest.mark.parametrize(
    ("setting", "allowed", "refused", "bounds"),
    [
        (Setting("", least=1), [1, 7, None, "???"], [0, -3], "1 or more"),
        (Setting("", least=0, most=1), [0, 0.5, 1], [-0.1, 1.1, float("nan")], "a number from 0 to 1"),
        (Setting("", above=0), [1e-9], [0, float("inf"), float("nan")], "a number above 0"),
        (Setting("", above=0, most=1), [0.1, 1], [0, 1.5], "a number above 0, at most 1"),
        (Setting("", choices=("a", "b")), ["a", "b", None], ["c", ""], "a or b"),
        (Setting(""), ["text", 3, True, -1.5], [float("inf")], ""),
    ],
)
def test_bounds(setting: Setting, allowed: list[Any], refused: list[Any], bounds: str) -> None:
    assert all(map(setting.allows, allowed)) and not any(map(setting.allows, refused))
    assert setting.bounds == bounds


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (NetworkConfig(dense=[8, 0]), "dense=0: write 1 or more"),
        (NetworkConfig(convolutions=[ConvolutionConfig(8, 3, 0)]), "convolutions[].stride=0: write 1 or more"),
        (LoggerConfig(name="files", finish_seconds=0), "finish_seconds=0: write a number above 0"),
        (Config(threads=0), "threads=0: write a number from 1 to 1024, or null"),
    ],
)
def test_bounds_hold_in_lists_and_blocks(block: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_bounds(block)
    assert str(error.value) == says
