"""Random streams: every consumer of randomness owns a generator, split from the run's seed by name."""

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator that belongs to `names` in the run with this seed; other names give independent streams."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))


def integer_seed(generator: np.random.Generator) -> int:
    """A seed for a library that wants a 32-bit integer."""
    return int(generator.integers(2**32))
