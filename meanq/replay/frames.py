"""Frame storage of the replay buffer, in host memory or on the learner's device."""

import numpy as np
import torch


def to_device(array: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move an array or tensor to the device. Copies to a GPU are asynchronous, from pinned memory."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class FrameRing:
    """Holds `slots` frames and one blank frame after them, which pads stacks before an episode's start."""

    def __init__(self, slots: int, size: int, dtype: np.dtype, device: torch.device, *, on_device: bool) -> None:
        self._device = device
        # np.zeros takes no memory until it is written to, so a large replay starts at once and grows as it fills.
        self._host = None if on_device else np.zeros((slots + 1, size), dtype=dtype)
        if self._host is not None:
            self._frames = torch.from_numpy(self._host)
        else:
            self._frames = torch.zeros(
                (slots + 1, size), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype, device=device
            )

    def read(self, slots: np.ndarray) -> np.ndarray:
        """Return frames [n, size] as a numpy array."""
        if self._host is not None:
            return self._host[slots]
        return self._frames[to_device(slots, self._device)].cpu().numpy()

    def write(self, slots: int | np.ndarray, frames: np.ndarray) -> None:
        """Store a frame [size], or frames [n, size]."""
        if self._host is not None:
            self._host[slots] = frames
        else:
            where = slots if isinstance(slots, int) else to_device(slots, self._device)
            own = np.require(frames, requirements=("C", "W"))  # torch warns of arrays that are read-only
            self._frames[where] = to_device(own, self._device)

    def gather(self, slots: np.ndarray) -> torch.Tensor:
        """Return frames [n, size] as a tensor on the learner's device."""
        index = torch.from_numpy(slots)
        if self._host is None:
            index = to_device(index, self._device)
        return to_device(torch.index_select(self._frames, 0, index), self._device)
