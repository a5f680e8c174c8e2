"""What integration tests share."""

from collections.abc import Iterator

import pytest

from tests.integration.slurm_cluster import Cluster, NoSlurmError, slurm_cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A SLURM cluster of one node, or a skipped test."""
    try:
        with slurm_cluster() as cluster:
            yield cluster
    except NoSlurmError as error:
        pytest.skip(f"no SLURM here: {error}")
