"""What TAB offers for `meanq run`: groups, their choices, studies, fields and their values."""

from dataclasses import is_dataclass

from meanq.config.fields import walk
from meanq.config.reference import GROUPS, group_choices
from meanq.config.setting import setting_of
from meanq.launching.study import study_names


def completions(word: str) -> list[str]:
    """Words that begin with `word`. Of several values separated by commas, the last is completed."""
    key, equals, value = word.partition("=")
    if not equals:
        fields = [f"{name}=" for name, field in walk() if not is_dataclass(field.type) and "[]" not in name]
        groups = [f"{group}=" for group in GROUPS]
        return sorted(name for name in {*fields, *groups, "+study="} if name.startswith(word))
    before, comma, last = value.rpartition(",")
    return [f"{key}={before}{comma}{choice}" for choice in _values(key) if choice.startswith(last)]


def _values(key: str) -> list[str]:
    if key in GROUPS:
        return group_choices(key)
    if key == "+study":
        return study_names()
    declared = dict(walk()).get(key.lstrip("+"))
    if declared is None:
        return []
    return ["false", "true"] if declared.type is bool else list(setting_of(declared).choices)
