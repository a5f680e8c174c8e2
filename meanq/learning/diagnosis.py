"""The state of a network at given states: dormant units, and the effective rank of its features.

A unit is a unit of a dense layer, or a channel of a convolution, whose activations count at all pixels. All numbers are
over the K members, which are diagnosed one by one.
"""

import math

import torch
from torch import Tensor

from meanq.learning.networks import Params, QNetwork

TAU = 0.025  # a unit is dormant up to this share of its layer's mean activation (Sokar et al. 2023)
RANK_SHARE = 0.99  # of the sum of singular values (Kumar et al. 2021: 1 - delta with delta = 0.01)


def dormant_units(activations: Tensor) -> Tensor:
    """Find the units [K, U] whose mean |activation| is at most TAU times their layer's mean; activations [K, N, U].

    All units of a layer without any activation are dormant.
    """
    activity = activations.abs().mean(1, dtype=torch.float64)
    return activity <= TAU * activity.mean(1, keepdim=True)


def effective_rank(features: Tensor) -> Tensor:
    """Compute the least number of singular values that hold RANK_SHARE of their sum, [K]; features [K, N, F].

    Features that are all 0 have rank 0.
    """
    held = torch.linalg.svdvals(features.double()).cumsum(-1)  # singular values come in descending order
    rank = (held < RANK_SHARE * held[:, -1:]).sum(-1) + 1
    return torch.where(held[:, -1] > 0, rank, 0)


@torch.inference_mode()
def diagnose(network: QNetwork, params: Params, states: Tensor) -> dict[str, float]:
    """Compute the columns of diagnosis.csv: shares of dormant units and the mean rank of the last features.

    Empty for a network of the user's own, whose layers are not known.
    """
    layers = network.activations(params, states)
    if not layers:
        return {}
    dormant = {layer: dormant_units(activations) for layer, activations in layers.items()}
    features = torch.cat([activations for layer, activations in layers.items() if layer.startswith("hidden")], -1)
    finite = bool(torch.isfinite(features).all())
    return {
        "dormant": float(torch.cat(list(dormant.values()), -1).double().mean()),
        **{f"dormant_{layer}": float(units.double().mean()) for layer, units in dormant.items()},
        "feature_rank": float(effective_rank(features).double().mean()) if finite else math.nan,
    }
