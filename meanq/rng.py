"""Random streams: each component that needs randomness owns a generator, derived from the run's seed by name."""

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the generator for `names` in a run with this seed. Different names give independent streams."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))


def integer_seed(generator: np.random.Generator) -> int:
    """Draw a 32-bit seed for libraries that take an integer."""
    return int(generator.integers(2**32))
