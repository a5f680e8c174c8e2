"""Try a user's own code on small random inputs before anything is written: shapes, signatures and missing methods."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from meanq.config.errors import ConfigError
from meanq.config.extensions import SCALAR_TARGETS, own_code
from meanq.config.schema import Config
from meanq.envs import make_env
from meanq.learning import build
from meanq.learning.bootstrap import bootstrap_rule, next_actions
from meanq.learning.networks import Params
from meanq.learning.optimiser import make_optimiser
from meanq.learning.values import make_value_form
from meanq.rng import stream

_BATCH = 3
_CPU = torch.device("cpu")


def try_own_code(config: Config) -> None:
    """Raise ConfigError, which names the field and its path, where code of the user's own does not work."""
    own = own_code(config)
    if not own:
        return
    members, generator = config.algo.ensemble_size, torch.Generator().manual_seed(0)
    with _blaming("env.kind", own):
        env = make_env(config.env, stream(0, "smoke"))
        _shape("reset()", env.reset(), env.frame_shape)
        _shape("the frame of step(0)", env.step(0).frame, env.frame_shape)
    actions = env.num_actions
    with _blaming("algo.value", own):
        form = make_value_form(config.algo, _CPU)
        last = (actions,) if form.atoms is None else (actions, form.atoms)
        outputs = form.outputs(torch.randn(members, _BATCH, *last, generator=generator))
        _shape("outputs", outputs, (members, _BATCH, *last))
        _shape("expectation", form.expectation(outputs), (members, _BATCH, actions))
        _shape("average", form.average(outputs, 0), (_BATCH, *last))
        taken = form.at(outputs, torch.zeros(members, _BATCH, dtype=torch.long))
        _shape("at", taken, (members, _BATCH, *last[1:]))
        spread = form.spread(outputs)
        if spread is not None:
            _shape("spread", spread, (members, _BATCH, actions))
    with _blaming("algo.bootstrap", own):
        rule = bootstrap_rule(config.algo.bootstrap, config.algo)
        evaluating = members if rule.all_members else 1
        next_outputs = outputs.expand(evaluating, *outputs.shape)
        q = form.expectation(next_outputs)
        for name in ("select", "evaluate"):
            _shape("its result", getattr(rule, name)(q), (members, _BATCH, actions))
        distributions = form.atoms is not None and config.algo.value not in SCALAR_TARGETS
        if distributions and rule.combine is None:
            raise ValueError("this rule cannot combine distributions: give it a `combine`")
        if distributions and rule.combine is not None:
            _shape("combine", rule.combine(next_outputs, q), outputs.shape)
    with _blaming("algo.value", own):
        zeros = torch.zeros(members, _BATCH)
        targets = form.target(rule, next_outputs, next_actions(rule, q), zeros, zeros)
        _shape("target", targets, taken.shape)
        for name, tensor in zip(("losses", "the errors of losses"), form.losses(taken, targets), strict=True):
            _shape(name, tensor, (members, _BATCH))
    with _blaming("network.kind", own):
        network = build.make_network(config, env)
        params = network.init([build.member_generator(0, k) for k in range(members)])
        if any(len(p) != members for p in params.values()):
            raise ValueError(f"parameters do not begin with the {members} members")
        for leading in ((_BATCH,), (members, _BATCH)):
            states = torch.zeros(*leading, *network.state_shape)
            _shape(f"its output for states {list(states.shape)}", network(params, states), (members, _BATCH, *last))
    with _blaming("algo.optimiser", own):
        _try_optimiser(config, params)
    with _blaming("algo.exploration", own):
        explorer = build.make_explorer(config, env)
        explorer.start_episode()
        q_values = np.zeros((members, actions), dtype=np.float32)
        for _ in range(100):  # late, when few actions are random
            action = explorer.act(10**9, lambda: q_values)
            if not 0 <= action < actions:
                raise ValueError(f"it chose the action {action} of {actions}")
        explorer.load_state_dict(explorer.state_dict())


def _try_optimiser(config: Config, params: Params) -> None:
    """One step, saving and loading."""
    after = {name: p.clone() for name, p in params.items()}
    optimiser = make_optimiser(config.algo, after)
    optimiser.step({name: torch.ones_like(p) for name, p in after.items()})
    if all(p.equal(params[name]) for name, p in after.items()):
        raise ValueError("step(gradients) did not change the parameters in place")
    optimiser.load_state_dict(optimiser.state_dict())
    if config.algo.reset_every is not None:
        optimiser.reset(list(after))


@contextlib.contextmanager
def _blaming(field: str, own: dict[str, str]) -> Iterator[None]:
    """Turn a failure of the user's own code into one line; errors of ours are left as they are."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if field not in own:
            raise
        reason = " ".join(str(error).split()) or "no reason given"
        message = f"{type(error).__name__}: {reason}; docs/extending.md says what it takes and returns"
        raise ConfigError(f"{field}={own[field]}: {message}") from None


def _shape(what: str, found: object, wanted: tuple[int, ...]) -> None:
    shape = getattr(found, "shape", None)
    if shape is None or tuple(shape) != tuple(wanted):
        has = f"has shape {list(shape)}" if shape is not None else f"is {type(found).__name__}"
        raise ValueError(f"{what} {has}, not {list(wanted)}")
