"""Device, cores and free memory of the machine, and whether the learner is compiled."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

import psutil
import torch

from meanq.config.errors import ConfigError
from meanq.config.extensions import own_code
from meanq.config.schema import Config
from meanq.learning.learner import why_not_compile

MAX_THREADS = 1_024


def resolve_device(device: str) -> torch.device:
    """The device; `auto` is a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def thread_count(config: Config) -> int:
    """Threads of the run: as configured, or all cores that this job may use."""
    if config.threads is not None:
        return config.threads
    return int(os.environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))


def updates(config: Config) -> int:
    """Number of gradient steps of a run."""
    algo = config.algo
    interactions = config.total_steps - algo.first_update + algo.interactions_per_update
    return max(0, interactions // algo.interactions_per_update) * algo.gradient_steps


def resolve_compile(config: Config, device: torch.device) -> tuple[bool, str]:
    """Whether to compile the learner, and why. `auto` compiles if the run is long enough to win the time back."""
    count = updates(config)
    if config.compile == "auto" and {"algo.value", "network.kind"} & set(own_code(config)):
        return False, "code of your own is compiled only with compile=true"
    if config.compile == "false" or (config.compile == "auto" and count < _COMPILE_FROM_UPDATES):
        reason = "compile=false" if config.compile == "false" else f"{count:,} updates are too few for it to pay"
        return False, reason
    obstacle = why_not_compile(device)
    if obstacle is not None and config.compile == "true":
        raise ConfigError(f"compile=true: torch cannot compile here ({obstacle}); write compile=false")
    if obstacle is not None:
        return False, f"torch cannot compile here: {obstacle}"
    return True, "compile=true" if config.compile == "true" else f"{count:,} updates"


# Compiling takes up to a minute, or seconds where another run has done it before; a step of the smallest ensembles
# then gains 1 to 3 ms.
_COMPILE_FROM_UPDATES = 20_000


def tune_process(threads: int) -> None:
    """Set what the learner's speed depends on in the whole process, and let a GPU compute the same bits each time."""
    torch.set_num_threads(threads)
    # By default cuDNN may add up a convolution's gradients in any order, so that no two runs are the same.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
    torch.set_flush_denormal(True)  # denormal Adam moments can make a step ten times slower
    # Tensors of some megabytes are freed and asked for again every step. By default glibc returns such memory to the
    # system, and getting it back costs page faults: 25 ms instead of 17 for a step of MeanQ with 1.3 million weights.
    with contextlib.suppress(OSError, AttributeError):  # not glibc: nothing to tune
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**30)


def trim_memory() -> None:
    """Return freed memory to the system: compiling takes a gigabyte or two for a while."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


MEMORY_SHARE = "MEANQ_MEMORY_SHARE"  # bytes; set for runs that a sweep starts side by side


def available_memory() -> int:
    """Free memory in bytes, within the limits of a container or scheduler (cgroup v2) and of a sweep's share."""
    free = min(psutil.virtual_memory().available, int(os.environ.get(MEMORY_SHARE, sys.maxsize)))
    path = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        path /= Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    for directory in (path, *path.parents):
        with contextlib.suppress(OSError, ValueError):  # it sets no limit
            limit, used = (int((directory / f"memory.{name}").read_text()) for name in ("max", "current"))
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
            cached_files = int(stat.get("inactive_file", 0))  # count as used, but can be dropped
            free = min(free, max(0, limit - used + cached_files))
    return free


def gpu_memory(device: torch.device) -> int:
    """Free memory of a GPU in bytes, with what torch holds since an earlier run of this process and would use again."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def human_bytes(count: float) -> str:
    """'3.5 GB'."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
