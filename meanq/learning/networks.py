"""Q networks of the whole ensemble: parameters are stacked [K, ...] and one call evaluates all members.

Networks are pure functions of a parameter dictionary, so online, target and snapshot weights are just different
dictionaries.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meanq.config.errors import ConfigError
from meanq.config.extensions import import_code
from meanq.config.schema import NetworkConfig
from meanq.learning.layers import LogProbabilities, Outputs, PlainOutputs, dense, fast_layout, read_size, same_pads
from meanq.learning.layers import Params as Params  # where others expect it
from meanq.learning.stacked import Stacked
from meanq.learning.stacked import StackedModule as StackedModule

# If one member's convolution needs more multiply-adds than this, a loop of plain convolutions is faster than one
# grouped convolution; below it, call overhead dominates. Measured on 2 CPU cores: with the loop, the learner step on
# 84x84 images is 10-30% faster and acting is 2x slower.
_LOOP_MULTIPLY_ADDS = 5e6

_NORM_EPSILON = 1e-5  # added to the variance in layer normalisation, as in torch.nn.LayerNorm


class QNetwork:
    """The networks of K members: convolutions, dense layers (noisy or not), then one stream or two (dueling).

    With `atoms`, an action has that many numbers. `form` says what numbers mean, by default log-probabilities with
    atoms and values without. With `parallel` > 1, each member consists of that many networks and outputs their mean.
    With `layer_norm`, the inputs of each rectifier are normalised, then scaled by a learned gain and moved by a learned
    shift: over all features of a layer (a stream of hidden units is a layer), or over the channels of each pixel.
    """

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        config: NetworkConfig,
        *,
        dueling: bool,
        scale: float,
        atoms: int | None = None,
        form: Outputs | None = None,
        noise: float | None = None,
        bias_noise: str = "fan_in",
        parallel: int = 1,
    ) -> None:
        self.state_shape = state_shape
        self.num_actions = num_actions
        self.dueling = dueling
        self._atoms = atoms
        self._form = form or (PlainOutputs() if atoms is None else LogProbabilities())
        self._noise = noise  # sigma_0 of noisy layers; None: no layer is noisy
        self._bias_noise = bias_noise
        self._shared_hidden = config.shared_hidden
        self._xavier = config.initial_weights == "xavier"
        self._same_padding = config.padding == "same"
        self._paddings: list[tuple[int, int, int, int]] = []  # per convolution: left, right, top, bottom
        self._norm = config.layer_norm
        self._parallel = parallel
        self._noisy_layers: dict[str, tuple[int, int, int]] = {}  # name -> streams, fan-in and fan-out per stream
        self._scale = scale  # factor for input states: 1/255 for pixels
        self._strides = [c.stride for c in config.convolutions]
        self._shapes: dict[str, tuple[tuple[int, ...], int, int]] = {}  # name -> shape for one member, fan-in, fan-out
        self._norm_shapes: dict[str, tuple[int, ...]] = {}  # layer -> shape of its gain and shift, for one member
        self.seen = self.state_shape[1:]  # height and width of the part of an image that affects the output
        self._conv_work: list[int] = []  # per convolution: multiply-adds for one member and one state
        features = self._add_convolutions(config)
        for i, width in enumerate(config.dense):
            self._add_dense(f"dense{i}", features, width)
            self._add_norm(f"dense{i}", (1, 1, width))
            features = width
        self._num_dense = len(config.dense)
        # The hidden layers of both dueling streams read the same features, so one matrix holds both.
        streams = 2 if dueling and not self._shared_hidden else 1
        self._add_dense("hidden", features, config.hidden, streams)
        self._add_norm("hidden", (1, streams, config.hidden))
        self._add_dense("advantage" if dueling else "value", config.hidden, num_actions * (atoms or 1))
        if dueling:
            self._add_dense("value", config.hidden, atoms or 1)

    def _add_convolutions(self, config: NetworkConfig) -> int:
        if not config.convolutions:
            return math.prod(self.state_shape)
        if len(self.state_shape) != 3:
            raise ConfigError(
                f"network={config.name}: convolutions need image states, these have shape {self.state_shape}; "
                "write network=mlp"
            )
        channels, height, width = self.state_shape
        if not self._same_padding:
            height, width = self.seen = read_size(height, config), read_size(width, config)
        for i, conv in enumerate(config.convolutions):
            if self._same_padding:
                top, bottom, left, right = *same_pads(height, conv), *same_pads(width, conv)
                self._paddings.append((left, right, top, bottom))
                height, width = height + top + bottom, width + left + right
            height, width = ((size - conv.kernel) // conv.stride + 1 for size in (height, width))
            if min(height, width) < 1:
                raise ConfigError(
                    f"network={config.name}: images of {self.state_shape[1]}x{self.state_shape[2]} are too small for "
                    f"its convolution {i + 1}; write network=minatar or network=mlp"
                )
            fan_in = channels * conv.kernel**2
            fan_out = conv.channels * conv.kernel**2
            self._shapes[f"conv{i}.weight"] = (conv.channels, channels, conv.kernel, conv.kernel), fan_in, fan_out
            self._shapes[f"conv{i}.bias"] = (conv.channels,), fan_in, fan_out
            self._conv_work.append(height * width * fan_in * conv.channels)
            channels = conv.channels
            self._add_norm(f"conv{i}", (channels, *((height, width) if self._norm == "features" else (1, 1))))
        return channels * height * width

    def _add_dense(self, name: str, fan_in: int, fan_out: int, streams: int = 1) -> None:
        self._shapes[f"{name}.weight"] = (fan_in, streams * fan_out), fan_in, fan_out
        self._shapes[f"{name}.bias"] = (1, streams * fan_out), fan_in, fan_out
        if self._noise is not None:
            self._noisy_layers[name] = streams, fan_in, fan_out

    def _add_norm(self, layer: str, shape: tuple[int, ...]) -> None:
        if self._norm != "none":
            self._norm_shapes[layer] = shape

    def is_last(self, name: str) -> bool:
        """Whether a parameter belongs to the hidden or output layers, after all convolutions and dense layers."""
        return name.partition(".")[0] in ("hidden", "advantage", "value")

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds for one state and one network (a member with `parallel` > 1 has several networks)."""
        dense = sum(math.prod(shape) for name, (shape, *_) in self._shapes.items() if _is_dense_weight(name))
        return sum(self._conv_work) + dense

    def init(self, generators: Sequence[torch.Generator]) -> Params:
        """Initialise parameters; member k uses only generator k.

        Weights and biases are uniform in +-1/sqrt(fan in), as in PyTorch's layers. With Xavier initialisation (not in
        noisy layers) weights are uniform in +-sqrt(6 / (fan in + fan out)) and biases are 0. Noise scales start at
        sigma_0/sqrt(fan in) (Fortunato et al. 2018), those of biases optionally at sigma_0/sqrt(fan out).
        """
        params = {}
        for name, (shape, fan_in, fan_out) in self._shapes.items():
            layer, _, kind = name.rpartition(".")
            bound = 1 / math.sqrt(fan_in)
            if self._xavier and layer not in self._noisy_layers:
                bound = 0.0 if kind == "bias" else math.sqrt(6 / (fan_in + fan_out))
            shape = (self._parallel, *shape)
            params[name] = torch.cat([torch.empty(shape).uniform_(-bound, bound, generator=g) for g in generators])
        for layer, (_, fan_in, fan_out) in self._noisy_layers.items():
            assert self._noise is not None
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            params[f"{weight}_sigma"] = torch.full_like(params[weight], self._noise / math.sqrt(fan_in))
            fan = fan_out if self._bias_noise == "fan_out" else fan_in
            params[f"{bias}_sigma"] = torch.full_like(params[bias], self._noise / math.sqrt(fan))
        for layer, shape in self._norm_shapes.items():
            params[f"{layer}.gain"] = torch.ones(len(generators) * self._parallel, *shape)
            params[f"{layer}.shift"] = torch.zeros(len(generators) * self._parallel, *shape)
        return params

    def members(self, params: Params) -> int:
        """Number of members K of these parameters."""
        return len(params["hidden.bias"]) // self._parallel

    def draw_noise(self, params: Params, generator: torch.Generator) -> Tensor | None:
        """Draw noise [K, inputs + outputs of all noisy layers], or return None if no layer is noisy.

        Noise is independent between members, layers and streams.
        """
        if not self._noisy_layers:
            return None
        bias = params["hidden.bias"]
        return torch.randn(len(bias), sum(self._noise_sizes()), generator=generator, device=bias.device)

    def _noise_sizes(self) -> list[int]:
        return [streams * size for streams, *sizes in self._noisy_layers.values() for size in sizes]

    def perturb(self, params: Params, noise: Tensor | None) -> Params:
        """Apply noise to the weights: w = mu + sigma * f(e_in) f(e_out)^T with f(e) = sign(e) sqrt|e|.

        All states of a batch share the noise. With `noise=None` the weights are returned unchanged (mu), as evaluation
        uses them by default.
        """
        if noise is None:
            return params
        factors = iter((noise.sign() * noise.abs().sqrt()).split(self._noise_sizes(), dim=1))
        perturbed = dict(params)
        for layer, (streams, _, _) in self._noisy_layers.items():
            for_inputs = next(factors).unflatten(1, (streams, -1)).transpose(1, 2).unsqueeze(-1)  # [K, in, streams, 1]
            for_outputs = next(factors)  # [K, streams * out]
            product = (for_inputs * for_outputs.unflatten(1, (1, streams, -1))).flatten(2)  # [K, in, streams * out]
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            perturbed[weight] = torch.addcmul(params[weight], params[f"{weight}_sigma"], product)
            perturbed[bias] = torch.addcmul(params[bias], params[f"{bias}_sigma"], for_outputs.unsqueeze(1))
        return perturbed

    def average(self, outputs: Tensor, dim: int) -> Tensor:
        """Average the outputs of several networks."""
        return self._form.average(outputs, dim)

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        """Compute outputs [K, N, A(, Z)].

        States are [N, *state], shared by all members, or [K, N, *state], one batch per member.
        """
        one_batch_each = states.dim() == len(self.state_shape) + 2
        if one_batch_each and self.members(params) == 1:
            states = states[0]  # with one member both forms must give bitwise equal results
        elif one_batch_each and self._parallel > 1:
            states = states.repeat_interleave(self._parallel, 0)
        if self._strides:
            height, width = self.seen
            states = states[..., :height, :width]
        x = states.to(torch.float32)
        if self._scale != 1:
            x = x * self._scale
        x = self._convolutions(params, x) if self._strides else x.flatten(-len(self.state_shape))
        for i in range(self._num_dense):
            x = self._rectify(params, f"dense{i}", dense(params, f"dense{i}", x))
        x = self._rectify(params, "hidden", dense(params, "hidden", x))
        if self.dueling:
            for_value, for_advantage = (x, x) if self._shared_hidden else x.chunk(2, dim=-1)
            advantage = self._per_action(dense(params, "advantage", for_advantage))  # [K, N, A(, Z)]
            value = self._per_action(dense(params, "value", for_value))  # [K, N, 1(, Z)]
            outputs = value + advantage - advantage.mean(2, keepdim=True)
        else:
            outputs = self._per_action(dense(params, "value", x))
        outputs = self._form.outputs(outputs)
        return outputs if self._parallel == 1 else self.average(outputs.unflatten(0, (-1, self._parallel)), 1)

    def activations(self, params: Params, states: Tensor) -> dict[str, Tensor]:
        """Compute the outputs of all rectifiers at states [N, *state], by layer: [K, N (* pixels), units].

        The hidden layers of dueling streams are separate layers, `hidden_value` and `hidden_advantage`.
        """
        found: dict[str, list[Tensor]] = {}
        watched = copy.copy(self)

        def rectify(params: Params, layer: str, x: Tensor, member: int | None = None) -> Tensor:
            found.setdefault(layer, []).append(self._rectify(params, layer, x, member))
            return found[layer][-1]

        watched._rectify = rectify  # type: ignore[method-assign]
        watched(params, states)
        layers: dict[str, Tensor] = {}
        for layer, parts in found.items():  # a convolution may be computed member by member
            x = torch.cat(parts, 1) if layer.startswith("conv") else parts[0]
            if layer.startswith("conv"):
                layers[layer] = x.unflatten(1, (len(params[f"{layer}.bias"]), -1)).permute(1, 0, 3, 4, 2).flatten(1, 3)
            elif layer == "hidden" and self.dueling and not self._shared_hidden:
                layers["hidden_value"], layers["hidden_advantage"] = x.chunk(2, dim=-1)
            else:
                layers[layer] = x
        return layers

    def _per_action(self, outputs: Tensor) -> Tensor:
        return outputs if self._atoms is None else outputs.unflatten(-1, (-1, self._atoms))

    def _convolutions(self, params: Params, x: Tensor) -> Tensor:
        """Compute features [K, N, F] in the order (y, x, channel), the order of channels-last memory."""
        members = len(params["conv0.weight"])
        shared = x.dim() == 4
        states = x.shape[-4]
        if shared:  # the same states for all members: their first layers are one convolution with K times the filters
            weight, bias = params["conv0.weight"], params["conv0.bias"]
            x = self._pad(fast_layout(x), 0)
            x = self._rectify(params, "conv0", F.conv2d(x, weight.flatten(0, 1), bias.flatten(), self._strides[0]))
        else:
            x = x.transpose(0, 1).flatten(1, 2)  # [N, K * C, H, W]
        first = 1 if shared else 0
        if members > 1 and states * max(self._conv_work[first:], default=0) > _LOOP_MULTIPLY_ADDS:
            return torch.stack(
                [self._convolve_member(params, member, k, first) for k, member in enumerate(x.chunk(members, dim=1))]
            )
        x = fast_layout(x)
        for i in range(first, len(self._strides)):
            weight, bias = params[f"conv{i}.weight"], params[f"conv{i}.bias"]
            x = self._pad(x, i)
            x = F.conv2d(x, weight.flatten(0, 1), bias.flatten(), self._strides[i], groups=members)
            x = self._rectify(params, f"conv{i}", x)
        return x.unflatten(1, (members, -1)).permute(1, 0, 3, 4, 2).flatten(2)

    def _convolve_member(self, params: Params, x: Tensor, k: int, first: int) -> Tensor:
        x = fast_layout(x)
        for i in range(first, len(self._strides)):
            x = self._pad(x, i)
            x = F.conv2d(x, params[f"conv{i}.weight"][k], params[f"conv{i}.bias"][k], self._strides[i])
            x = self._rectify(params, f"conv{i}", x, k)
        return x.permute(0, 2, 3, 1).flatten(1)

    def _rectify(self, params: Params, layer: str, x: Tensor, member: int | None = None) -> Tensor:
        """Normalise a layer's outputs, where configured, and rectify them.

        Convolutions have outputs [N, K * C, H, W], of all members or of one; dense layers have [K, N, F].
        """
        if self._norm == "none":
            return F.relu(x)
        gain, shift = params[f"{layer}.gain"], params[f"{layer}.shift"]
        if member is not None:
            gain, shift = gain[member : member + 1], shift[member : member + 1]
        split, over = 2, [-1]  # dense: [K, N, streams, F], a gain is [K, 1, streams, F]
        if layer.startswith("conv"):  # [N, K, C, H, W], a gain is [K, C, H, W] or [K, C, 1, 1]
            split, over = 1, [2] if self._norm == "channels" else [2, 3, 4]
        x = x.unflatten(split, (len(gain), -1) if split == 1 else gain.shape[2:])
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        normal = (x - mean) * (variance + _NORM_EPSILON).rsqrt()
        return F.relu(normal * gain + shift).flatten(split, split + 1)

    def _pad(self, x: Tensor, convolution: int) -> Tensor:
        return F.pad(x, self._paddings[convolution]) if self._same_padding else x


class OwnNetwork(QNetwork):
    """The network that `network.kind` names by its import path: a plain nn.Module, or a `Stacked`."""

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        config: NetworkConfig,
        *,
        scale: float,
        form: Outputs,
        atoms: int | None,
    ) -> None:
        self.state_shape, self.seen = state_shape, state_shape[1:]
        self.num_actions, self.dueling = num_actions, False
        self._scale, self._form, self._noisy_layers = scale, form, {}
        outputs = (num_actions,) if atoms is None else (num_actions, atoms)
        code = import_code("network.kind", config.kind)

        def make() -> Any:
            return code(state_shape, outputs, **config.options)

        with torch.random.fork_rng(devices=[]):
            made = make()
        self._stacked: Stacked = StackedModule(make, state_shape) if isinstance(made, torch.nn.Module) else made

    @property
    def multiply_adds(self) -> int:
        """Estimated as the number of one member's parameters."""
        return parameter_count(self.init([torch.Generator()]))

    def init(self, generators: Sequence[torch.Generator]) -> Params:
        return self._stacked.init(generators)

    def members(self, params: Params) -> int:
        return len(next(iter(params.values())))

    def activations(self, params: Params, states: Tensor) -> dict[str, Tensor]:
        return {}

    def __call__(self, params: Params, states: Tensor) -> Tensor:
        return self._form.outputs(self._stacked(params, states.to(torch.float32) * self._scale))


def _is_dense_weight(name: str) -> bool:
    return name.endswith(".weight") and not name.startswith("conv")


def parameter_count(params: Params) -> int:
    """Count the parameters of all members together."""
    return sum(p.numel() for p in params.values())
