"""Sum trees: draw an index with probability proportional to its priority, in log time, for many trees at once."""

import numpy as np


class SumTrees:
    """`trees` sum trees over the same `size` leaves, stored as one array [trees, 2 * width] with the root at 1.

    Leaves are written at once; the sums above them are brought up to date, for all written leaves together, when
    the trees are next read. So a single write costs next to nothing.
    """

    def __init__(self, trees: int, size: int) -> None:
        self.size = size
        self._depth = max(1, int(size - 1).bit_length())
        self._width = 1 << self._depth
        self._sums = np.zeros((trees, 2 * self._width))
        self._row = np.arange(trees)[:, None]
        self._stale: list[np.ndarray] = []  # leaves [trees or 1, n] whose ancestors are out of date

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._sums.nbytes

    def set(self, leaves: np.ndarray, priorities: np.ndarray | float) -> None:
        """Write priorities (broadcast to [trees, n]) at `leaves`: [n] in every tree, or [trees, n]."""
        leaves = np.array(leaves, ndmin=2)  # a copy: it is read again when the sums are brought up to date
        self._sums[self._row, leaves + self._width] = priorities
        self._stale.append(leaves)

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Priorities [trees, n] at `leaves` [n] or [trees, n]."""
        return self._sums[self._row, np.atleast_2d(leaves) + self._width]

    def total(self) -> np.ndarray:
        """The sum of each tree, [trees]."""
        self._refresh()
        return self._sums[:, 1].copy()

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf where the running sum of priorities first exceeds `mass`, for mass [rows, n] in [0, total).

        Rows are trees; a single tree serves any number of rows. A leaf with priority 0 is never returned.
        """
        self._refresh()
        trees, columns = self._sums.shape
        sums = self._sums.ravel()
        offset = self._row * columns if trees > 1 else 0
        mass = mass.copy()
        node = np.ones(mass.shape, dtype=np.int64)
        for _ in range(self._depth):
            node *= 2
            left = sums[node + offset]
            # Rounding may leave a mass at or past the end of its subtree: stay out of an empty right child.
            right = (mass >= left) & (sums[node + offset + 1] > 0)
            mass -= left * right
            node += right
        return node - self._width

    def _refresh(self) -> None:
        if not self._stale:
            return
        trees = len(self._sums)
        leaves = np.concatenate([np.broadcast_to(leaves, (trees, leaves.shape[1])) for leaves in self._stale], axis=1)
        self._stale.clear()
        node = leaves + self._width
        sums = self._sums
        for _ in range(self._depth):
            node = node >> 1
            left = 2 * node
            sums[self._row, node] = sums[self._row, left] + sums[self._row, left + 1]

    def state_dict(self, used: int | None = None) -> dict[str, np.ndarray]:
        """The leaves, of which only the first `used` were ever written; the sums follow from them."""
        used = self.size if used is None else used
        return {"leaves": self._sums[:, self._width : self._width + used].copy()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take the leaves of another tree of the same shape."""
        leaves = state["leaves"]
        self._sums[:, self._width :] = 0
        self._sums[:, self._width : self._width + leaves.shape[1]] = leaves
        self._stale.clear()
        for level in range(self._depth - 1, -1, -1):
            start = 1 << level
            children = self._sums[:, 2 * start : 4 * start].reshape(len(self._sums), start, 2)
            self._sums[:, start : 2 * start] = children.sum(axis=2)
