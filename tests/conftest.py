"""Settings of all tests. One thread each: the tests' tensors are tiny, and pytest-xdist uses the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
