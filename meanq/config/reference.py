"""The reference of all groups and fields, made from the schema: --help as text, docs/fields.md as Markdown.

python -m meanq.config.reference > docs/fields.md
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any, cast

from omegaconf import OmegaConf

from meanq.config.fields import flatten, walk
from meanq.config.schema import CONFIG_DIR, HyperparametersConfig, register_schema
from meanq.config.setting import allowed_values, as_written, setting_of

OPTIONS = {
    "-m, --multirun": "run all combinations of values separated by commas",
    "--dry-run": "list the runs and estimate their hours, then stop",
    "--cfg job": "show the configuration of a run, then stop",
    "--config-dir DIR": "also look for choices in DIR, e.g. DIR/algo/mine.yaml",
    "--shell-completion": 'for bash: eval "$(meanq --shell-completion install=bash)"',
    "--hydra-help": "show Hydra's own options",
    "-h, --help": "show this page",
}
GROUPS = {
    "algo": "the method",
    "env": "the environment",
    "network": "the layers; algo or env choose them unless you do",
    "protocol": "details of environment, noise and evaluation",
    "logger": "a mirror of the run besides its own directory",
    "hydra/launcher": "runs of -m in turn, several at once, or as SLURM jobs",
}
_WIDTH = 79
_LONGEST_DEFAULT = 20


@dataclass(frozen=True)
class Row:
    """One field; `default` is empty where it is too long for a line."""

    name: str
    default: str
    meaning: str
    values: str

    @property
    def described(self) -> str:
        """Meaning and values, in few words: what null means is said in the meaning."""
        values = self.values.removeprefix("a number ").removesuffix(", or null")
        return f"{self.meaning}; {values}" if values else self.meaning


def group_choices(group: str) -> list[str]:
    """Names that GROUP=NAME takes; files that begin with an underscore are parts of others."""
    directory = CONFIG_DIR / group
    files = [path.relative_to(directory) for path in directory.rglob("*.yaml") if path.name[0] != "_"]
    hydras_own = ["basic"] if group == "hydra/launcher" else []
    return sorted(hydras_own + [path.with_suffix("").as_posix() for path in files])


def sections() -> dict[str, list[Row]]:
    """All fields by title: those of the run itself first, then one section per block."""
    defaults = _default_values()
    found: dict[str, list[Row]] = {"run": []}
    title, families = "run", []
    for name, field in walk():
        meaning = setting_of(field).meaning
        if field.type is HyperparametersConfig:
            families.append(name)
        elif name.startswith(tuple(f"{family}." for family in families)):
            continue
        elif not is_dataclass(field.type):
            default = as_written(defaults.get(name, ""))
            default = default if len(default) <= _LONGEST_DEFAULT else ""
            found[title].append(Row(name, default, meaning, allowed_values(field)))
        elif "." not in name:
            title = f"{name}: {meaning}"
            found[title] = []
    title = f"env.FAMILY: values for each family of algorithms ({', '.join(name[4:] for name in families)})"
    family_fields = walk(HyperparametersConfig, "env.FAMILY.")
    found[title] = [Row(name, "", setting_of(field).meaning, "") for name, field in family_fields]
    return found


def _default_values() -> dict[str, Any]:
    """Fields of `python -m meanq.run`, by dotted name."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        composed = cast(dict[str, Any], OmegaConf.to_container(compose("config"), resolve=True))
    return flatten(composed)


def help_page(usage: str) -> str:
    """What --help prints. `usage` comes first."""
    lines = [usage.strip(), "", "Options", *_two_columns(OPTIONS.items())]
    lines += ["", "Groups: choose with GROUP=CHOICE"]
    for group, meaning in GROUPS.items():
        lines += _wrapped(f"  {group}: ", meaning) + _wrapped("    ", ", ".join(group_choices(group)))
    lines += ["", "Fields: override with FIELD=VALUE; shown are the values of `python -m meanq.run`"]
    for title, rows in sections().items():
        pairs = [
            (
                f"{row.name}={row.default}" if row.default else row.name,
                row.described,
            )
            for row in rows
        ]
        lines += ["", *_wrapped("", title), *_two_columns(pairs)]
    return "\n".join(lines)


def _two_columns(pairs: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(pairs)
    width = max(len(left) for left, _ in pairs)
    return [line for left, right in pairs for line in _wrapped(f"  {left:{width}}  ", right)]


def _wrapped(indent: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False
    )


def markdown() -> str:
    """The content of docs/fields.md."""
    parts = [
        "# Groups and fields",
        "Made by `python -m meanq.config.reference > docs/fields.md` from `meanq/config/schema.py`; edit that file. "
        "The same page on the command line: `python -m meanq.run --help`.",
        "## Groups\n\nChoose with `group=choice`; each choice is a file of `conf/`.",
        _table(
            ("group", "what", "choices"),
            [(f"`{group}`", what, " ".join(f"`{c}`" for c in group_choices(group))) for group, what in GROUPS.items()],
        ),
        "## Fields\n\nOverride with `field=value`. The defaults are those of `python -m meanq.run`, which is MeanQ on "
        "MinAtar Asterix; other choices of a group have other values, which `--cfg job` shows.",
    ]
    for title, rows in sections().items():
        cells = [(f"`{r.name}`", f"`{r.default}`" if r.default else "", r.meaning, r.values) for r in rows]
        parts += [f"### {title}", _table(("field", "default", "meaning", "values"), cells)]
    return "\n\n".join(parts)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    print(markdown())
