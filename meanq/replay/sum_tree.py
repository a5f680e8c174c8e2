"""Sum trees: draw an index with probability proportional to its priority, in log time, for many trees at once."""

import numpy as np


class SumTrees:
    """`trees` sum trees over the same `size` leaves, all in one array: the children of node n are 2n and 2n + 1.

    The roots lie side by side, as if they were nodes of one larger tree, so that a step up or down is the same in all.
    Leaves are written at once; the sums above them are brought up to date, for all written leaves together, when
    the trees are next read. So a single write costs next to nothing.
    """

    def __init__(self, trees: int, size: int) -> None:
        self.size = size
        self._depth = _depth(size)
        self._width = 1 << self._depth
        roots = _first_root(trees)
        self._roots = slice(roots, roots + trees)
        self._row = np.arange(roots, roots + trees)[:, None]  # of each tree: its root
        self._first = self._row * self._width  # and its first leaf
        self._sums = np.zeros(tree_bytes(trees, size) // 8)
        self._children = self._sums.view(np.complex128)  # node n's, as one number: one access reads both
        self._stale: list[np.ndarray] = []  # leaves whose ancestors are out of date

    def set(self, leaves: np.ndarray | int, priorities: np.ndarray | float) -> None:
        """Write priorities (broadcast to [trees, n]) at `leaves`: [n] in every tree, or [trees, n]."""
        nodes = self._first + leaves
        self._sums[nodes] = priorities
        self._stale.append(nodes.ravel())

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Priorities [trees, n] at `leaves` [n] or [trees, n]; a single tree serves any number of rows."""
        return self._sums[self._first + leaves]

    def total(self) -> np.ndarray:
        """The sum of each tree, [trees]."""
        self._refresh()
        return self._sums[self._roots].copy()

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf where the running sum of priorities first exceeds `mass`, for mass [rows, n] in [0, total).

        Rows are trees; a single tree serves any number of rows. A leaf with priority 0 is never returned.
        """
        self._refresh()
        nodes = self._descend(mass, careful=False)
        if not self._sums[nodes].all():
            # Rounding has left a mass at or past the end of its subtree: stay out of the empty right child.
            nodes = self._descend(mass, careful=True)
        return nodes - self._first

    def _descend(self, mass: np.ndarray, *, careful: bool) -> np.ndarray:
        mass = mass.copy()
        node = np.empty(mass.shape, dtype=np.int64)
        node[:] = self._row
        sums = self._sums
        for _ in range(self._depth):
            node += node
            left = sums.take(node)
            right = (mass >= left).astype(np.int64)
            if careful:
                right &= sums.take(node + 1) > 0
            left *= right
            mass -= left
            node += right
        return node

    def _refresh(self) -> None:
        if not self._stale:
            return
        nodes = np.concatenate(self._stale)
        self._stale.clear()
        for _ in range(self._depth):
            nodes >>= 1
            self._sum_up(nodes)

    def _sum_up(self, nodes: np.ndarray | slice) -> None:
        children = self._children[nodes]
        self._sums[nodes] = children.real + children.imag

    def state_dict(self, used: int | None = None) -> dict[str, np.ndarray]:
        """The leaves, of which only the first `used` were ever written; the sums follow from them."""
        return {"leaves": self.get(np.arange(self.size if used is None else used))}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take the leaves of another tree of the same shape."""
        leaves = state["leaves"]
        self._sums[:] = 0
        self._stale.clear()
        self._sums[self._first + np.arange(leaves.shape[1])] = leaves
        for level in range(self._depth - 1, -1, -1):
            self._sum_up(slice(self._roots.start << level, self._roots.stop << level))


def tree_bytes(trees: int, size: int) -> int:
    """The memory that the sums take."""
    return (_first_root(trees) + trees) * (1 << _depth(size)) * 8


def _depth(size: int) -> int:
    return max(1, (size - 1).bit_length())


def _first_root(trees: int) -> int:
    """A power of 2, so that the nodes of one depth follow each other, tree by tree."""
    return 1 << (trees - 1).bit_length()
