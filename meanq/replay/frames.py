"""The frames of a replay, each stored once: in the machine's memory, or in that of the device that learns."""

import numpy as np
import torch


def move(array: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on the device; to a GPU without waiting for the copy, for which the memory has to be pinned."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class FrameRing:
    """`slots` frames and one blank one after them, which stands for every frame before an episode's start."""

    def __init__(self, slots: int, size: int, dtype: np.dtype, device: torch.device, *, on_device: bool) -> None:
        self._device = device
        # numpy's zeros cost nothing until they are written to, so a large replay starts at once and grows as it fills.
        self._host = None if on_device else np.zeros((slots + 1, size), dtype=dtype)
        if self._host is not None:
            self._frames = torch.from_numpy(self._host)
        else:
            self._frames = torch.zeros(
                (slots + 1, size), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype, device=device
            )

    def read(self, slots: np.ndarray) -> np.ndarray:
        """Frames [n, size]."""
        if self._host is not None:
            return self._host[slots]
        return self._frames[move(slots, self._device)].cpu().numpy()

    def write(self, slots: int | np.ndarray, frames: np.ndarray) -> None:
        """Store a frame [size], or frames [n, size]."""
        if self._host is not None:
            self._host[slots] = frames
        else:
            where = slots if isinstance(slots, int) else move(slots, self._device)
            self._frames[where] = move(np.ascontiguousarray(frames), self._device)

    def gather(self, slots: np.ndarray) -> torch.Tensor:
        """Frames [n, size] on the device that learns."""
        index = torch.from_numpy(slots)
        if self._host is None:
            index = move(index, self._device)
        return move(torch.index_select(self._frames, 0, index), self._device)
