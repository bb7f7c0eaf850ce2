#!/usr/bin/env python3
"""wrap.py MODULE SOURCE.cu OUT.cpp [-DNAME=VALUE...]: a host source that includes device code and registers its kernels. A module's own names stay
its own, as on a GPU: in a namespace without a name, else the linker takes one module's templates for another's of the same name."""
import pathlib, re, sys

module, source, out = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3])
defines = [a[2:].replace("=", " ", 1) for a in sys.argv[4:]]
defined = {d.split()[0] for d in defines}


def kept(text):
    """The lines that #ifdef and #ifndef leave, as far as the names are given here; other conditions leave all."""
    lines, holds = [], []
    for line in text.splitlines():
        word = line.split()
        if word and word[0] in ("#if", "#ifdef", "#ifndef"):
            holds.append(None if word[0] == "#if" else (word[1] in defined) == (word[0] == "#ifdef"))
        elif word and word[0] == "#else":
            holds[-1] = None if holds[-1] is None else not holds[-1]
        elif word and word[0] == "#endif":
            holds.pop()
        elif False not in holds:
            lines.append(line)
    return "\n".join(lines)


names = re.findall(r"KR_KERNEL\s+void\s+(?:KR_BOUNDS\([^)]*\)\s+)?(\w+)\s*\(", kept(source.read_text()))
if not names:
    sys.exit(f"wrap.py: {source.name} has no KR_KERNEL")
lines = [f"/* {out.name}: made by tests/cuda/emulator/wrap.py. */", "#define KR_EMULATE 1", "#define KR_TIER 50", *[f"#define {d}" for d in defines],
         '#include "kernel.cuh"', '#include "mma.cuh"', "namespace {", f'#include "{source}"', "}"]
out.write_text("\n".join(lines + [f'KR_EMULATED_KERNEL("{module}", {name})' for name in names]) + "\n")
