"""Every field of the schema with values of every kind: a run that can begin, or one line that names the field."""

import copy
import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from meanq.config.checks import from_omegaconf
from meanq.config.errors import ConfigError
from meanq.config.fields import walk
from meanq.config.schema import CONFIG_DIR, Config, register_schema
from meanq.launching.hydra_bridge import one_line_errors
from meanq.training.session import Session

# All families of env have the same fields.
FIELDS = [
    name
    for name, field in walk()
    if not is_dataclass(field.type) and "[]" not in name and not re.match(r"env\.(vanilla|sunrise|canonical|dop)", name)
]
HUGE = "1000000000"
VALUES = (
    *("nan", "inf", "-inf", "null", "''", "' '", "-1", "0", HUGE, "9" * 30, "1e300", "-1e300", "1e-300"),
    *(
        "x",
        "true",
        "[]",
        "[1]",
        "[x, x]",
        "{}",
        "{a: 1}",
        "'../x'",
        "'.x'",
        "'a\nb'",
        "a.b",
        "'${seed}'",
        "'${nothing}'",
    ),
)


@cache
def base(root: Path):  # type: ignore[no-untyped-def]
    register_schema()
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", ["env=chain", "algo=dqn", "threads=1", "compile=false", "label=run", f"root={root}"])


def configured(root: Path, name: str, text: str) -> Config:
    """The checked configuration with one field changed, as the command line would."""
    value = OverridesParser.create().parse_override(f"{name}={text}").value()
    config = copy.deepcopy(base(root))
    with one_line_errors():
        OmegaConf.update(config, name, str(value) if hasattr(value, "quote") else value)
        return from_omegaconf(config)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_takes_a_value_or_says_in_one_line_why_not(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "never_written"
    taken = []
    for text in VALUES:
        try:
            config = configured(root, name, text)
            taken.append(text)
            if text in (HUGE, "0", "-1", "1e-300"):  # what passes the checks and might not fit
                Session(config)
        except ConfigError as error:
            assert re.fullmatch(r"[^\n]{3,600}", str(error)), (text, error)
            assert str(error).isprintable(), (text, error)
    if dict(walk())[name].type in (int, float):
        assert not {"nan", "inf", "-inf", "null", "''", "x", "[1]", "{a: 1}", "1e300"} & set(taken)
    assert dict(walk())[name].type is not int or "9" * 30 not in taken
    assert not root.exists()
