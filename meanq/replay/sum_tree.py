"""Sum trees: sample indices in proportion to their priorities in O(log n), for several trees at once."""

import numpy as np


class SumTrees:
    """`trees` sum trees with `size` leaves each, in one array: the children of node n are 2n and 2n + 1.

    The roots are adjacent, like nodes of one larger tree, so moving up or down uses the same index arithmetic in all
    trees. Writing a leaf is cheap: the sums above written leaves are updated together when the trees are next read.
    """

    def __init__(self, trees: int, size: int) -> None:
        self.size = size
        self._depth = _depth(size)
        self._width = 1 << self._depth
        roots = _first_root(trees)
        self._roots = slice(roots, roots + trees)
        self._row = np.arange(roots, roots + trees)[:, None]  # root of each tree
        self._first = self._row * self._width  # first leaf of each tree
        self._sums = np.zeros(tree_bytes(trees, size) // 8)
        self._children = self._sums.view(np.complex128)  # both children of node n as one number, read in one access
        self._stale: list[np.ndarray] = []  # leaves whose ancestors' sums are out of date

    def set(self, leaves: np.ndarray | int, priorities: np.ndarray | float) -> None:
        """Write priorities (broadcast to [trees, n]) at `leaves`: [n] in every tree, or [trees, n]."""
        nodes = self._first + leaves
        self._sums[nodes] = priorities
        self._stale.append(nodes.ravel())

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Read priorities at `leaves`: [n] in every tree, or [trees, n]. A single tree accepts any number of rows."""
        return self._sums[self._first + leaves]

    def total(self) -> np.ndarray:
        """Return the sum of each tree, [trees]."""
        self._refresh()
        return self._sums[self._roots].copy()

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Find the leaves where the cumulative sum of priorities first exceeds `mass` [rows, n], in [0, total).

        Each row uses its own tree; a single tree accepts any number of rows. Leaves with priority 0 are never returned.
        """
        self._refresh()
        nodes = self._descend(mass, skip_empty=False)
        if not self._sums[nodes].all():
            # Rounding left a mass at or past the end of its subtree: never enter an empty right child.
            nodes = self._descend(mass, skip_empty=True)
        return nodes - self._first

    def _descend(self, mass: np.ndarray, *, skip_empty: bool) -> np.ndarray:
        mass = mass.copy()
        node = np.empty(mass.shape, dtype=np.int64)
        node[:] = self._row
        sums = self._sums
        for _ in range(self._depth):
            node += node
            left = sums.take(node)
            right = (mass >= left).astype(np.int64)
            if skip_empty:
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
        """Return the first `used` leaves (default: all). The sums are recomputed from them on loading."""
        return {"leaves": self.get(np.arange(self.size if used is None else used))}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        leaves = state["leaves"]
        self._sums[:] = 0
        self._stale.clear()
        self._sums[self._first + np.arange(leaves.shape[1])] = leaves
        for level in range(self._depth - 1, -1, -1):
            self._sum_up(slice(self._roots.start << level, self._roots.stop << level))


def tree_bytes(trees: int, size: int) -> int:
    """Memory in bytes of the sums."""
    return (_first_root(trees) + trees) * (1 << _depth(size)) * 8


def _depth(size: int) -> int:
    return max(1, (size - 1).bit_length())


def _first_root(trees: int) -> int:
    """Return a power of 2, so that nodes of the same depth are contiguous, tree by tree."""
    return 1 << (trees - 1).bit_length()
