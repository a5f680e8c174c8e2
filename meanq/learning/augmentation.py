"""Image augmentation: random shifts and random intensity (DrQ, Kostrikov et al. 2021)."""

import torch
from torch import Tensor


def random_shift(states: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Shift each image of [..., C, H, W] by up to `pixels` in both directions; border pixels fill the gap.

    Equivalent to replicate padding followed by a random crop, but without padding.
    """
    height, width = states.shape[-2:]
    flat = states.flatten(0, -4)  # [N, C, H, W]
    shifts = torch.randint(-pixels, pixels + 1, (2, len(flat), 1), generator=generator, device=states.device)
    rows = (torch.arange(height, device=states.device) + shifts[0]).clamp(0, height - 1)  # [N, H]
    columns = (torch.arange(width, device=states.device) + shifts[1]).clamp(0, width - 1)  # [N, W]
    image = torch.arange(len(flat), device=states.device)[:, None, None]
    # Index with channels last, so that each index copies all channels of a pixel.
    moved = flat.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).reshape(states.shape)


def random_intensity(states: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Multiply each image of [..., C, H, W] by 1 + scale * e, where e is standard normal, clipped to [-2, 2]."""
    leading = states.shape[:-3]
    draws = torch.randn(leading, generator=generator, device=states.device).clamp(-2, 2)
    return states * (1 + scale * draws)[..., None, None, None]
