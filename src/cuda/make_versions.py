#!/usr/bin/env python3
"""make_versions.py OUT.def doctor.tables: the doctor's table of CUDA releases as KR_CUDA_VERSION(cuda, ptx), newest
first, for src/cuda."""
import pathlib
import sys

out, tables = map(pathlib.Path, sys.argv[1:])
rows = tables.read_text().split("[toolkit]\n")[1].split("\n\n")[0].splitlines()
pairs = [[int(part) for part in word.split(".")] for row in rows if row[0] != "#" for word in row.split("|")[:2]]
lines = ["KR_CUDA_VERSION(%d, %d)\n" % (1000 * cuda[0] + 10 * cuda[1], 10 * ptx[0] + ptx[1]) for cuda, ptx in zip(pairs[::2], pairs[1::2])]
out.write_text("".join(reversed(lines)))
