"""The comparison with Stable-Baselines3 is fair: same network, same minibatches' size, same target and loss."""

import numpy as np
import pytest
import torch

from benchmarks.measure import compose, engine_side
from benchmarks.stable_baselines import SAME, fill, library_side, make_model, update_only
from meanq.learning.values import ScalarValue
from meanq.training.session import Session

pytest.importorskip("stable_baselines3")
CONFIG = compose(*SAME, "algo.replay_capacity=60", threads=1)


def test_both_networks_have_the_same_layers_and_outputs() -> None:
    ours, theirs = Session(CONFIG).loop.agent, make_model(CONFIG, 60)
    layers = list(theirs.q_net.parameters())
    params = ours.online
    weights = [p[0] for p in params.values()]
    assert sorted(w.numel() for w in weights) == sorted(p.numel() for p in layers)
    own = {name: p.clone() for name, p in params.items()}
    # Our dense weights are [in, out], theirs [out, in]; our features are in the order (y, x, channel).
    hidden = next(i for i, weight in enumerate(weights) if weight.shape == (7 * 7 * 64, 512))
    weights[hidden] = weights[hidden].unflatten(0, (7, 7, 64)).permute(2, 0, 1, 3).flatten(0, 2)
    with torch.no_grad():
        for target, source in zip(layers, weights, strict=True):
            target.copy_(source.T if target.dim() == 2 else source.reshape(target.shape))
    states = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), dtype=np.uint8)
    expected = ours.values(states)[0]
    with torch.no_grad():
        found = theirs.q_net(torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert all(p.equal(params[name]) for name, p in own.items())


def test_both_have_the_same_target_and_loss() -> None:
    """Huber loss of r + gamma max Q-bar; ours is what the benchmark's configuration says."""
    algo = CONFIG.algo
    assert (algo.ensemble_size, algo.target_snapshots, algo.multi_step, algo.value) == (1, 1, 1, "scalar")
    assert not algo.double and not algo.prioritized and algo.target_network is not None
    taken, targets = torch.tensor([[0.5, 3.0]]), torch.tensor([[0.0, 0.0]])
    losses, _ = ScalarValue(algo.loss).losses(taken, targets)
    theirs = torch.nn.functional.smooth_l1_loss(taken, targets, reduction="none")
    assert losses.equal(theirs)
    model = make_model(CONFIG, 60)
    assert model.gamma == algo.discount and model.batch_size == algo.batch_size == 32 and model.max_grad_norm == 10


def test_an_update_of_either_side_is_one_gradient_step() -> None:
    model = make_model(CONFIG, 60)
    fill(model, CONFIG, 60)
    assert model.replay_buffer is not None and model.replay_buffer.full
    stacked = model.replay_buffer.observations[1, 0]
    assert stacked.shape == (4, 84, 84) and stacked[:2].max() == 0, "blank before the first frame of an episode"
    side = library_side(CONFIG, 60)
    assert set(side.update()) >= {"whole"} and side.run is None
    ours = update_only(engine_side(CONFIG, 60))
    before = {name: p.clone() for name, p in ours.engine.loop.agent.online.items()}
    step = ours.engine.loop.step
    ours.update()
    assert ours.engine.loop.step == step, "no interaction"
    assert any(not p.equal(before[name]) for name, p in ours.engine.loop.agent.online.items())
