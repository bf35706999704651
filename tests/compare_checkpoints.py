#!/usr/bin/env python3
"""Compares two checkpoints bit for bit, except for the metrics that they contain, whose timings differ, and what
follows from them: their checksums, and the shard index. Shards are compared as files.

    compare_checkpoints.py CHECKPOINT OTHER

Exit status: 0 equal, 1 a difference, which is printed."""

import pathlib
import sys

import h5py

IGNORED = {"metrics", "shards"}


def contents(path):
    """Returns dtype, shape and bytes of all datasets and attributes by name."""
    found = {}

    def add(name, item):
        if name.split("/")[0] in IGNORED:
            return
        if isinstance(item, h5py.Dataset):
            value = item[()]
            found[name] = (item.dtype, item.shape, value.tobytes() if hasattr(value, "tobytes") else value)
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = repr(value)

    with h5py.File(path) as file:
        file.visititems(add)
    return found


def shards(path):
    with h5py.File(path) as file:
        step = int(file["step"][()])
    return {one.name: one.read_bytes() for one in path.parent.glob(f"step_{step:08d}.shard_*.h5")}


def main():
    ours, theirs = (pathlib.Path(name) for name in sys.argv[1:3])
    for read in (contents, shards):
        here, there = read(ours), read(theirs)
        if not here and read is contents:
            sys.exit(f"{ours}: no content")
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                sys.exit(f"{ours} and {theirs} differ in {name}")


main()
