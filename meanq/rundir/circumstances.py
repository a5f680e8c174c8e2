"""Versions, machine and commit: what results may depend on besides the configuration."""

import contextlib
import os
import platform
import socket
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any


def circumstances() -> dict[str, Any]:
    """Describe the software and the machine, for meta.json."""
    versions = {}
    for package in ("meanq", "torch", "numpy", "gymnasium", "ale-py", "minatar", "hydra-core"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "versions": versions,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),  # of the machine; `threads` says how many the run uses
        "commit": _git_commit(),
    }


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


@cache
def _git_commit() -> str | None:
    """Asked once per process: a commit made while a run goes on is not the code that it runs."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
