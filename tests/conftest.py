"""Settings of all tests. One thread each: the tests' tensors are tiny, and pytest-xdist uses the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from absl import logging as absl_logging

# rliable imports absl, whose log handler keeps the stderr of that moment, which is pytest's, and closes it whenever
# somebody configures logging anew, as importing submitit does. It never closes this one.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# A shell that starts the tests in the background makes them, and all processes they start, deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


INTEGRATION = Path(__file__).parent / "integration"


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Mark all of tests/integration as slow. `make test` leaves slow tests out; `make integration` runs only them."""
    for item in items:
        if INTEGRATION in item.path.parents:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Before each test: a run sets the number of threads of the whole process."""
    torch.set_num_threads(1)
