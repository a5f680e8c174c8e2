"""Settings of all tests. One thread each: the tests' tensors are tiny, and pytest-xdist uses the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import signal

import pytest
import torch

# A shell that starts the tests in the background makes them, and all processes they start, deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Before each test: a run sets the number of threads of the whole process."""
    torch.set_num_threads(1)
