"""Resets: which weights change, when, by how much, and what the optimiser remembers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from meanq.learning.agent import Agent
from meanq.learning.build import member_generator
from meanq.learning.networks import Params
from tests.helpers import algo_config, make_agent, random_params
from tests.learning.test_bootstrap import make_batch, make_network
from tests.short_runs import SHORT, make_run, train, weights

LAST = ("hidden.", "advantage.", "value.")


def agents(members: int, target: bool = True, **changes: Any) -> tuple[Agent, Agent]:
    """One with resets, and one without."""
    name, network = "meanq" if target else "meanq_no_target", make_network()
    params = random_params(network, members, 0)
    algo = algo_config(name, ensemble_size=members, **changes)
    return make_agent(algo, network, params), make_agent(algo_config(name, ensemble_size=members), network, params)


def naive_reset(params: Params, members: int, number: int, layers: str) -> tuple[Params, set[str]]:
    """Weights after a reset, one at a time, and the names of those that it changes."""
    fresh = random_params(make_network(), members, 100 + number)
    after, changed = {}, set()
    for name, p in params.items():
        after[name] = p.clone()
        for place in range(p.numel()):
            old, new = p.view(-1)[place].item(), fresh[name].view(-1)[place].item()
            if name.startswith(LAST):
                after[name].view(-1)[place] = new
            elif layers == "all":
                after[name].view(-1)[place] = 0.8 * old + 0.2 * new
        if name.startswith(LAST) or layers == "all":
            changed.add(name)
    return after, changed


@pytest.mark.parametrize("target", [True, False], ids=["target", "no target"])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("members", [1, 5])
def test_every_so_many_steps_layers_are_drawn_anew(members: int, layers: str, target: bool) -> None:
    agent, plain = agents(members, target, reset_every=3, reset_layers=layers)
    for update in range(1, 8):
        batch = make_batch(members, update)
        lagging = {name: p.clone() for name, p in (agent.target or {}).items()}
        agent.learn(batch)
        plain.learn(batch)
        if update % 3 == 0:
            expected, changed = naive_reset(plain.online, members, update // 3, layers)
            assert changed and (len(changed) == len(expected)) == (layers == "all")
            state = plain.state_dict()
            for name in changed:
                for moment in state["optimiser"][name].values():
                    moment.zero_()
            plain.load_state_dict({**state, "online": expected})
        for name, p in plain.online.items():
            torch.testing.assert_close(agent.online[name], p, rtol=1e-5, atol=1e-7)
            for moment, value in plain.state_dict()["optimiser"][name].items():
                torch.testing.assert_close(agent.state_dict()["optimiser"][name][moment], value, rtol=1e-4, atol=1e-7)
        assert all(torch.equal(p, lagging[name]) for name, p in (agent.target or {}).items())


def test_an_agent_goes_on_counting_after_a_checkpoint() -> None:
    agent, other = (agents(2, reset_every=3)[0] for _ in range(2))
    for update in range(1, 10):
        agent.learn(make_batch(2, update))
        if update == 4:
            other.load_state_dict(agent.state_dict())
        if update > 4:
            other.learn(make_batch(2, update))
            assert all(torch.equal(p, other.online[name]) for name, p in agent.online.items())


@pytest.mark.parametrize("optimiser", ["torch.optim.RMSprop", "torch.optim.NAdam"])
def test_other_optimisers_forget_too(optimiser: str) -> None:
    agent, _ = agents(2, reset_every=2, optimiser=optimiser)
    for update in range(1, 4):
        agent.learn(make_batch(2, update))
        remembered = agent.state_dict()["optimiser"]
        assert {name for name in agent.online if name.startswith(LAST)}.isdisjoint(remembered) == (update == 2)
        assert "dense0.weight" in remembered


class NoReset:
    """An optimiser that cannot forget."""


def test_an_optimiser_that_cannot_forget_is_refused(tmp_path: Path) -> None:
    path = "tests.learning.test_resets.NoReset"
    with pytest.raises(ValueError, match=r"algo.reset_every=10: algo.optimiser=\S+ has no method `reset`"):
        make_run(tmp_path, *SHORT, "algo.reset_every=10", f"algo.optimiser={path}")


def test_fresh_weights_belong_to_seed_member_and_reset(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SHORT, "algo=meanq", "algo.reset_every=10", "seed=3")
    fresh = run.loop.agent._fresh
    assert fresh is not None
    alone = run.loop.agent._network.init([member_generator(3, 1, 2)])
    assert all(torch.equal(p[1:2], alone[name]) for name, p in fresh(2).items())
    assert not torch.equal(fresh(1)["value.weight"], fresh(2)["value.weight"])


def test_a_run_that_ends_with_a_reset_has_fresh_last_layers(tmp_path: Path) -> None:
    """The first update comes at interaction 64, the 40th at 142."""
    short = (*SHORT, "algo=dqn", "total_steps=142")
    run = train(tmp_path / "reset", *short, "algo.reset_every=40", "algo.reset_layers=last")
    plain = weights(train(tmp_path / "plain", *short).directory)
    fresh = run.loop.agent._network.init([member_generator(0, 0, 1)])
    for name, p in weights(run.directory).items():
        assert torch.equal(p, fresh[name] if name.startswith(LAST) else plain[name]), name
