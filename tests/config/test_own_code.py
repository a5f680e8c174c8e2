"""Every kind of code of one's own trains by its import path, and resumes exactly."""

from pathlib import Path

import pytest

from meanq.config.errors import ConfigError
from tests.short_runs import SHORT, SilentReporter, make_run, train, weights

HERE = "tests.config.own_code"
CASES = {
    "value": (f"algo.value={HERE}.Absolute",),
    "exploration": (f"algo.exploration={HERE}.softmax",),
    "network": ("network=custom", f"network.kind={HERE}.Net", "+network.options.width=8", "algo.dueling=false"),
    "network of distributions": (
        *("network=custom", f"network.kind={HERE}.Net", "algo.dueling=false"),
        *("algo.value=quantile", "algo.quantiles=7"),
    ),
    "optimiser": ("algo.optimiser=torch.optim.RMSprop", "+algo.optimiser_options.alpha=0.95"),
}


class StopError(Exception):
    pass


class Stopping(SilentReporter):
    def evaluated(self, step: int, episodes: object) -> None:
        raise StopError


@pytest.mark.parametrize("kind", CASES)
def test_it_trains_and_resumes_exactly(kind: str, tmp_path: Path) -> None:
    fields = (*SHORT, "algo=meanq", "algo.ensemble_size=2", "compile=false", *CASES[kind], "label=x")
    whole = train(tmp_path / "whole", *fields)
    with pytest.raises(StopError):
        make_run(tmp_path / "cut", *fields, "checkpoint.every=60").train(Stopping())
    resumed = train(tmp_path / "cut", *fields, "checkpoint.every=60")
    theirs = weights(resumed.directory)
    assert all(p.equal(theirs[name]) for name, p in weights(whole.directory).items())
    plain = train(tmp_path / "plain", *fields[: len(fields) - 1 - len(CASES[kind])], "label=x")
    ours = weights(plain.directory)
    assert not all(name in ours and p.equal(ours[name]) for name, p in theirs.items()), "it changes learning"


MISTAKES = {
    "algo.bootstrap": ("all_members", "its result has shape"),
    "algo.exploration": ("ninth_action", "it chose the action 99"),
    "algo.optimiser": ("NoSteps", "has no attribute 'step'"),
    "algo.value": ("HalfForm", "has no attribute 'outputs'"),
    "network.kind": ("FlatNet", "its output for states"),
    "logger.name": ("HalfForm", "it has no method log"),
}


@pytest.mark.parametrize("field", MISTAKES)
def test_a_mistake_is_told_before_anything_is_written(field: str, tmp_path: Path) -> None:
    name, reason = MISTAKES[field]
    own = ("network=custom", "algo.dueling=false") if field == "network.kind" else ()
    with pytest.raises(ConfigError) as caught:
        make_run(tmp_path, *SHORT, *own, f"{field}={HERE}.{name}")
    message = str(caught.value)
    assert message.startswith(f"{field}={HERE}.{name}: ") and reason in message and "\n" not in message
    assert not list(tmp_path.iterdir())
