"""Makes run directories that are broken or hostile: every file of a run, with everything that can be wrong with it."""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meanq.rundir.reader import find_runs
from tests.synthetic_runs import write_run

FILES = ("config.yaml", "status.json", "meta.json", "evaluations.csv", "training.csv", "timings.csv", "probes.npz")
ESCAPE = "\x1b]0;owned\x07\x1b[31mred"


def _archive(compression: int = zipfile.ZIP_DEFLATED, /, **members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return data.getvalue()


def _array(**arrays: object) -> bytes:
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]
    return data.getvalue()


def _npy_header(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "newline": b"\n",
    "binary": bytes(range(256)) * 20,
    "nul": b"\0" * 1000,
    "utf16": "step,return\n1,2\n".encode("utf-16"),
    "not_utf8": b"step,return\n\xff\xfe,\xe9\n",
    "brackets": b"[" * 200_000,
    "braces": b"{" * 200_000,
    "nested_json": b'{"state": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "items": b"- " * 100_000,
    "carriage_returns": b"a:\r" + b"- " * 100_000,
    "indented": b"".join(b" " * depth + b"a:\n" for depth in range(1_000)),
    "aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n" % (98 + i, 98 + i, *[97 + i] * 9) for i in range(12)
    ),
    "merges": b"a: &a {x: 1}\n"
    + b"".join(b"%c: &%c {<<: [*%c, *%c, *%c, *%c]}\n" % (98 + i, 98 + i, *[97 + i] * 4) for i in range(20)),
    "merge_tags": b"a: &a {x: 1}\nb: {!!merge x: [*a, *a], !!merge y: [*a, *a]}\n",
    "sexagesimal": b"seed: " + b"1:" * 500_000 + b"1\n",
    "values": b"[" + b"1," * 400_000 + b"1]",
    "tags": b"!!python/object/apply:os.system ['touch owned']\n",
    "digits": b'{"step": ' + b"9" * 4_000 + b"}",
    "more_digits": b"step,episode,return\n" + b"9" * 10_000 + b",0,1\n",
    "infinity": b'{"state": "finished", "step": Infinity, "total_steps": -Infinity}',
    "nan": b'{"state": "finished", "step": NaN, "total_steps": NaN, "seconds": NaN, "resumed": NaN}',
    "dates": b"seed: 2020-01-01\ntotal_steps: 2020-01-01 10:00:00\nstudy: s\nlabel: l\nenv: {}\nalgo: {}\n",
    "list": b"[1, 2, 3]",
    "text": b'"text"',
    "types": b'{"state": ["finished"], "step": "1", "total_steps": {}, "resumed": 3, "seconds": "x", "overrides": 1}',
    "control": json.dumps(
        {"state": "failed", "step": 1, "total_steps": 2, "reason": ESCAPE, "traceback": ESCAPE}
    ).encode(),
    "control_names": f'"{ESCAPE}": 1\n'.encode(),
    "quotes": b'step,return\n"1,2\n' * 1_000,
    "columns": b"a," * 50_000 + b"\n1\n",
    "steps": b"step,episode,return,seconds,steps_per_second\n" + b"9" * 4_000 + b",0,1,1,1\n",
    "ragged": b"step,episode,return\n1\n1,2,3,4,5,6,7,8,9\n",
    "huge_numbers": b"step,episode,return,seconds,steps_per_second\n1e400,1e400,1e400,1e400,1e400\n",
    "archive": _archive(step=b"", q=b""),
    "bomb": _archive(step=b"\0" * 10, q=b"\0" * 2**28 + b"\0"),
    "lying_header": _archive(step=_npy_header("(1,)") + b"\0" * 8, q=_npy_header("(200000, 50, 5, 30)")),
    "pickle": _array(step=np.array([1]), q=np.array([{"a": 1}], dtype=object)),
    "shapes": _array(step=np.arange(3), q=np.zeros((2, 4, 1, 2))),
    "not_finite": _array(step=np.array([10_000]), q=np.full((1, 4, 1, 2), np.inf), true_q=np.full((4, 2), np.nan)),
}

# Almost as large as a file of this kind may be, and bad all the same.
LARGE: dict[str, dict[str, Callable[[], bytes]]] = {
    ".csv": {
        "rows": lambda: b"step,episode,return,seconds,steps_per_second\n" + b"12\n" * 1_000_000,
        "same_step": lambda: b"step,episode,return,seconds,steps_per_second\n" + b"1,1,1,1,1\n" * 250_000,
        "cells": lambda: b",".join(b"c%d" % i for i in range(999)) + b"\n" + (b"1," * 998 + b"1\n") * 2_000,
        "text": lambda: b"step,episode,return,seconds,steps_per_second\n" + b"1,1,x,x,x\n" * 250_000,
        "one_line": lambda: b"step,return,seconds,steps_per_second\n1,1,1," + b"9" * 5_000_000,
    },
    ".npz": {
        "members": lambda: _archive(**{str(i): b"" for i in range(50_000)}),
        "bzip2": lambda: _archive(zipfile.ZIP_BZIP2, step=b"\0", q=b"\0" * 130_000_000),
        "half": lambda: _array(step=np.arange(60), q=np.zeros((60, 1_000_000, 1, 1), np.float16)),
        "unlike": lambda: _array(step=np.arange(30), q=np.zeros((30, 1_000_000, 1, 1), np.float32)),
        "descending": lambda: _array(step=-np.arange(15_000_000), q=np.zeros((15_000_000, 1, 1, 1), np.int8)),
    },
    ".json": {"text": lambda: b'{"state": "' + b"x" * 1_000_000 + b'"}'},
    ".yaml": {"text": lambda: b"label: " + b"x" * 1_000_000, "lines": lambda: b"a: 1\n" * 200_000},
}


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 * 2**30)  # sparse: takes no disk


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link_out": lambda path: path.symlink_to("/etc/passwd"),
    "link_to_itself": lambda path: path.symlink_to(path.name),
    "socket": _socket,
    "large": _large,
}


def spoil(path: Path, name: str) -> None:
    """Replace a file by one of CONTENTS, KINDS or, with `large_` before the name, LARGE."""
    path.unlink(missing_ok=True)
    if name in KINDS:
        KINDS[name](path)
    elif name in CONTENTS:
        path.write_bytes(CONTENTS[name])
    else:
        path.write_bytes(LARGE[path.suffix][name.removeprefix("large_")]())


def write_hostile_runs(root: Path) -> list[Path]:
    """Write one run for every file and everything that can be wrong with it."""
    made = []
    for file in FILES:
        for name in (*CONTENTS, *KINDS, *(f"large_{name}" for name in LARGE[Path(file).suffix])):
            returns = {10_000: [1, 2], 20_000: [3, 4]}
            directory = write_run(root, label=f"{file}_{name}", returns=returns, q={10_000: np.zeros((4, 1, 2))})
            spoil(directory / file, name)
            made.append(directory)
    return made


# Changes of a checkpoint's content; its checksums are made right again afterwards.
FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no_state": lambda content: content.pop("state"),
    "state_of_text": lambda content: content.update(state="text"),
    "state_of_lists": lambda content: content.update(state=[[]] * 100_000),
    "no_agent": lambda content: content["state"].pop("agent"),
    "agent_of_numbers": lambda content: content["state"].update(agent=dict.fromkeys(content["state"]["agent"], 3)),
    "no_weights": lambda content: content["state"]["agent"].update(online={}),
    "weights_of_text": lambda content: content["state"]["agent"].update(online={"a": ESCAPE}),
    "step_of_text": lambda content: content.update(step=ESCAPE),
    "step_of_another": lambda content: content.update(step=10**15),
    "threads": lambda content: content["state"].update(threads=10**9),
    "threads_of_text": lambda content: content["state"].update(threads="1"),
    "versions": lambda content: content["state"].update(versions=3),
    "device": lambda content: content["state"]["versions"].update(device=ESCAPE),
    "rows": lambda content: content["state"]["record"].update({"evaluations.csv": 10**9}),
    "rows_of_text": lambda content: content["state"].update(record={"probes.npz": "x"}),
    "no_rows": lambda content: content["state"].update(record={}),
    "seconds": lambda content: content["state"].update(seconds="x"),
    "format": lambda content: content.update(format=ESCAPE),
    "files_elsewhere": lambda content: content["files"].update({"../../../../other/file": "x"}),
    "sizes": lambda content: content.update(sizes=dict.fromkeys(content["sizes"], "x")),
    "frames": lambda content: content["frames"][0].update(last=10**12),
    "frames_of_text": lambda content: content["frames"][0].update(first="x"),
    "frames_unpacked": lambda content: content["frames"][0].update(compressed="yes"),
    "scalar": lambda content: content["state"].update(seconds={"$scalar": ["V10000000000", 10**10]}),
    "array_twice": lambda content: content["state"].update(seconds=[content["state"]["agent"]] * 2),
    "bytes": lambda content: content["state"].update(seconds={"$bytes": ["x"]}),
    "infinity": lambda content: content["state"].update(seconds=float("inf")),
}
# Of CONTENTS, for every file of a run that is resumed.
RESUMED = ("empty", "not_utf8", "brackets", "steps", "types", "control", "nan", "lying_header", "pickle", "not_finite")
SHORT = (
    *("algo=dqn", "env=chain", "total_steps=60", "algo.first_update=20", "evaluation.every=30"),
    *("evaluation.episodes=2", "probe.every=30", "log_every=20", "checkpoint.every=20"),
    *("threads=1", "device=cpu", "label=hostile"),
)


def write_interrupted_runs(root: Path, interrupted: Path, other: Path) -> list[Path]:
    """Copy a run of SHORT that was interrupted, spoil a file of each copy, or forge its checkpoints.

    They are the seeds from 1 on of <root>/<study>/<env>/<label>; the last one is a copy as it is. `other` is a
    directory to which one of them leads.
    """
    place = root.joinpath(*interrupted.parts[-4:-1])
    files = sorted(str(path.relative_to(interrupted)) for path in interrupted.rglob("*") if path.is_file())
    files = [file for file in files if file != "config.yaml"]
    kept = [file for file in files if "/" not in file]
    tasks = [(file, name) for file in [*files, "lock", "weights.safetensors"] for name in KINDS]
    tasks += [(file, name) for file in [*kept, "lock", "weights.safetensors"] for name in RESUMED]
    tasks += [("checkpoint", "link"), ("checkpoint", "fifo")] + [("forged", name) for name in FORGERIES]
    made = []
    for seed, (file, name) in enumerate([*tasks, ("", "")], 1):
        directory = place / f"seed_{seed}"
        shutil.copytree(interrupted, directory)
        config = directory / "config.yaml"
        config.write_text(re.sub("^seed: 0$", f"seed: {seed}", config.read_text(), flags=re.MULTILINE))
        if file == "forged":
            for path in (directory / "checkpoint").glob("state-*.json"):
                content = json.loads(path.read_bytes().splitlines()[0])
                FORGERIES[name](content)
                line = json.dumps(content).encode()
                path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
        elif file == "checkpoint":
            shutil.rmtree(directory / file)
            (directory / file).symlink_to(other) if name == "link" else os.mkfifo(directory / file)
        elif file:
            spoil(directory / file, name)
        made.append(directory)
    return made


def make_videos(root: Path, out: Path) -> None:
    """Make a short video of each run, as `meanq video` does; the reasons of failures go to stderr."""
    from analysis.video import main

    for directory in find_runs([root], []):
        name = out / directory.parent.name / f"{directory.name}.gif"
        try:
            main([str(directory), "--out", str(name), "--seconds", "0"])
        except SystemExit as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    make_videos(*map(Path, sys.argv[1:]))
