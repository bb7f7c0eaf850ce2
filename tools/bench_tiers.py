#!/usr/bin/env python3
"""Times the same work for each type of its tensors and each tier of device code, and prints docs/SPEED.md's table "by type and tier":
    bench_tiers.py [--krait PROGRAM] [--device cuda] [--tiers base,turing,ampere,hopper] [--only WORDS] [--limit SECONDS] [--json FILE]
Cells are medians of `krait bench`; an empty one was not measured, "-" is not to be had (a type or tier that the work or the GPU does not take). Below the
table: the cells that are more than ten times behind the next tier of their type, or behind float16 of their tier. --only runs the rows whose name has one
of the words (comma separated); no cell is begun after SECONDS. Exit status 1: a run failed."""
import argparse
import json
import shlex
import subprocess
import sys
import time

SSD, LAYER = "B=%d,L=2048,H=24,P=64,N=128,G=1", "B=1,H=16,Hk=16,Bk=1,Lq=2048,Lk=2048,D=%d,Dv=%d"
OPERATORS = [  # row, operator, shape, unit: of TFLOP/s or ms
    ("product 4096 x 4096 x 4096", "gemm", "M=4096,N=4096,K=4096", "TFLOP/s"), ("product 1024 x 768 x 1536", "gemm", "M=1024,N=768,K=1536", "TFLOP/s"),
    ("SSD B1 L2048 H24 P64 N128", "ssd", SSD % 1, "ms"), ("SSD B8 L2048 H24 P64 N128", "ssd", SSD % 8, "ms"), ("its gradient", "ssd_bwd", SSD % 8, "ms"),
    ("attention B1 H16 L2048 D64", "attention", LAYER % (64, 64), "TFLOP/s"), ("attention B1 H16 L2048 D128", "attention", LAYER % (128, 128), "TFLOP/s"), ("its gradient", "attention_bwd", LAYER % (128, 128), "TFLOP/s"),
    ("selective scan B8 D1536 L2048 N16", "selective_scan", "B=8,D=1536,L=2048,N=16", "ms")]
MODELS = ["mamba-130m", "mamba-2.8b", "mamba2-130m", "qwen2-0.5b"]
TYPES = ["float32", "tf32", "float16", "bfloat16", "q8_0"]


def rows():
    """(name, unit, arguments of krait bench of a type, or None where the work has no such form)."""
    for name, op, shape, unit in OPERATORS:
        def operator(kind, op=op, shape=shape):
            if kind == "q8_0" or (kind == "tf32" and op not in ("gemm", "ssd", "ssd_bwd")):
                return None
            return [op, "--shape", shape + (",tf32" if kind == "tf32" else ""), "--dtype", "float32" if kind == "tf32" else kind]
        yield name + (" of " + op.split("_")[0] if name == "its gradient" else ""), unit, operator
    for sizes in MODELS:
        for name, key in (("step of %s, ms", "step_s"), ("prompt of 512, %s, ms", "prompt_s")):
            def model(kind, sizes=sizes):
                return None if kind == "tf32" else ["generate", "--sizes", sizes, "--prompt", "512", "--dtype", kind]
            yield name % sizes, key, model


def measure(arguments, tier):
    """What the program says, or why it says nothing."""
    done = subprocess.run([*shlex.split(options.krait), "bench", *arguments, "--tier", tier, "--device", options.device, "--no-fallback", "--json"], capture_output=True, text=True)
    return (json.loads(done.stdout[done.stdout.index("{"):]), "") if done.returncode == 0 else (None, (done.stderr.strip().splitlines() or ["status %d" % done.returncode])[-1])


def value_of(times, unit):
    if unit.endswith("_s"):
        return 1e3 * times[unit]
    return 1e3 * times["median_s"] if unit == "ms" else times["flops"] / times["median_s"] / 1e12


def main():
    begun, cells, memo, failed, tiers = time.time(), {}, {}, 0, options.tiers.split(",")
    names = []
    for name, unit, arguments in rows():
        if options.only and not any(w in name for w in options.only.split(",")):
            continue
        names.append((name, unit))
        for kind in TYPES:
            for tier in tiers:
                how = arguments(kind)
                at = (tuple(how or ()), tier)  # of a model, one run gives the step and the prompt
                if how is None or (at not in memo and time.time() - begun > options.limit):
                    cells[name, kind, tier] = "-" if how is None else ""
                    continue
                if at not in memo:
                    memo[at] = measure(how, tier)
                    print("%s, %s, %s: %s" % (name, kind, tier, memo[at][1] or "ok"), file=sys.stderr, flush=True)
                    failed |= bool(memo[at][1]) and "refuses" not in memo[at][1] and "no implementation" not in memo[at][1]
                cells[name, kind, tier] = value_of(memo[at][0], unit) if memo[at][0] else "-"
    columns = [(kind, tier) for kind in TYPES for tier in tiers if any(isinstance(cells[n, kind, tier], float) for n, _ in names)]
    print("| | %s |\n|---%s|" % (" | ".join("%s, %s" % c for c in columns), "|---" * len(columns)))
    for name, unit in names:
        shown = ["%.4g" % v if isinstance(v, float) else v for v in (cells[(name, *c)] for c in columns)]
        print("| %s%s | %s |" % (name, "" if unit.endswith("_s") else ", " + unit, " | ".join(shown)))
    for name, unit in names:
        for kind, tier in columns:
            better = [(kind, tiers[tiers.index(tier) + 1])] if tier != tiers[-1] else []
            for other in better + ([("float16", tier)] if kind in ("float32", "bfloat16") else []):
                ours, theirs = cells[(name, kind, tier)], cells.get((name, *other))
                behind = isinstance(ours, float) and isinstance(theirs, float) and (theirs / ours if unit == "TFLOP/s" else ours / theirs)
                if behind and behind > 10:
                    print("%s: %s, %s is %.1f times behind %s, %s" % (name, kind, tier, behind, *other))
    if options.json:
        with open(options.json, "w") as f:
            json.dump([[*key, cell] for key, cell in cells.items()], f, indent=0)
    return 1 if failed else 0


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--krait", default="build/krait", help="the program, or a command that runs it")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiers", default="base,turing,ampere,hopper")
    p.add_argument("--only", default="")
    p.add_argument("--limit", type=float, default=500)
    p.add_argument("--json", default="")
    options = p.parse_args()
    sys.exit(main())
