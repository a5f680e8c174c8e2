"""Data augmentation of images: random shifts and random intensity (DrQ, Kostrikov et al. 2021)."""

import torch
from torch import Tensor


def random_shift(states: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Images [..., C, H, W], each moved by up to `pixels` in both directions; what enters repeats the border.

    The same as padding with the border and cutting out at random, without the padding.
    """
    height, width = states.shape[-2:]
    flat = states.flatten(0, -4)  # [N, C, H, W]
    shifts = torch.randint(-pixels, pixels + 1, (2, len(flat), 1), generator=generator, device=states.device)
    rows = (torch.arange(height, device=states.device) + shifts[0]).clamp(0, height - 1)  # [N, H]
    columns = (torch.arange(width, device=states.device) + shifts[1]).clamp(0, width - 1)  # [N, W]
    image = torch.arange(len(flat), device=states.device)[:, None, None]
    # Channels last while indexing, so that whole pixels move.
    moved = flat.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).reshape(states.shape)


def random_intensity(states: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Images [..., C, H, W], each times 1 + scale * e, with e a standard normal draw that is cut off at -2 and 2."""
    leading = states.shape[:-3]
    draws = torch.randn(leading, generator=generator, device=states.device).clamp(-2, 2)
    return states * (1 + scale * draws)[..., None, None, None]
