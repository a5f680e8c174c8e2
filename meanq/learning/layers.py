"""Layers of all K members at once, and the meaning of a network's outputs: pure functions of stacked parameters."""

import math
from typing import Protocol

import torch
from torch import Tensor

from meanq.config.schema import ConvolutionConfig, NetworkConfig

Params = dict[str, Tensor]

# If a dense layer has more weights than this, a single state is multiplied in parts. Measured with Nature's layer:
# 0.45 ms instead of 0.7 ms.
_SPLIT_WEIGHTS = 1_000_000

# If a dense layer has fewer outputs than this (but more than one), the transposed product is computed. It is up to
# three times as fast and rounds all rows alike, which the cache of next states' values requires (target_cache.py).
_NARROW = 16


class Outputs(Protocol):
    """How a network's outputs follow from its last layer, and how those of several networks are averaged."""

    def outputs(self, raw: Tensor) -> Tensor: ...

    def average(self, outputs: Tensor, dim: int) -> Tensor: ...


class PlainOutputs:
    """Outputs are what the last layer gives."""

    def outputs(self, raw: Tensor) -> Tensor:
        return raw

    def average(self, outputs: Tensor, dim: int) -> Tensor:
        return outputs.mean(dim)


class LogProbabilities:
    """Outputs are distributions over the last dimension, as log-probabilities."""

    def outputs(self, raw: Tensor) -> Tensor:
        return raw.log_softmax(-1)

    def average(self, outputs: Tensor, dim: int) -> Tensor:
        return outputs.logsumexp(dim) - math.log(outputs.shape[dim])


def same_pads(size: int, conv: ConvolutionConfig) -> tuple[int, int]:
    """Compute the zero padding before and after one dimension that gives ceil(size / stride) outputs."""
    total = max((math.ceil(size / conv.stride) - 1) * conv.stride + conv.kernel - size, 0)
    return total // 2, total - total // 2


def read_size(size: int, config: NetworkConfig) -> int:
    """Compute how many rows (or columns) of an image the convolutions read; they skip a remainder at the end.

    The data-efficient network reads 75 of 84 pixels in each dimension, four fifths of the image.
    """
    left = size
    for conv in config.convolutions:
        left = (left - conv.kernel) // conv.stride + 1
    if left < 1:
        return size  # too small; the network raises
    for conv in reversed(config.convolutions):
        left = (left - 1) * conv.stride + conv.kernel
    return left


def fast_layout(x: Tensor) -> Tensor:
    """Convert to channels-last memory, which speeds up convolutions of many states, but not of a single one."""
    return x.contiguous(memory_format=torch.channels_last) if len(x) > 1 else x


def dense(params: Params, name: str, x: Tensor) -> Tensor:
    """Apply a dense layer: [N, in] or [K, N, in] -> [K, N, out]."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    members, fan_in, fan_out = weight.shape
    if x.shape[-2] == 1 and fan_in * fan_out > _SPLIT_WEIGHTS and fan_in % 4 == 0:
        # A single state: four partial products use cores and memory bandwidth better than one product with one row.
        parts = x.expand(members, 1, fan_in).reshape(4 * members, 1, -1)
        return torch.bmm(parts, weight.view(4 * members, -1, fan_out)).view(members, 4, fan_out).sum(1, True) + bias
    if 1 < fan_out < _NARROW and x.shape[-2] > 1:
        return torch.matmul(weight.mT, x.mT).mT + bias
    if members == 1:  # addmm has less overhead than a batched product with one matrix
        return torch.addmm(bias[0], x.reshape(-1, x.shape[-1]), weight[0]).unsqueeze(0)
    return torch.matmul(x, weight) + bias
