#!/usr/bin/env python3
"""wrap.py MODULE SOURCE.cu OUT.cpp [-DNAME=VALUE...]: a host source that includes device code and registers its kernels."""
import pathlib, re, sys

module, source, out = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3])
defines = [a[2:].replace("=", " ", 1) for a in sys.argv[4:]]
names = re.findall(r"KR_KERNEL\s+void\s+(?:KR_BOUNDS\([^)]*\)\s+)?(\w+)\s*\(", source.read_text())
if not names:
    sys.exit(f"wrap.py: {source.name} has no KR_KERNEL")
lines = [f"/* {out.name}: made by tests/cuda/emulator/wrap.py. */", "#define KR_EMULATE 1", "#define KR_TIER 50", *[f"#define {d}" for d in defines], f'#include "{source}"']
out.write_text("\n".join(lines + [f'KR_EMULATED_KERNEL("{module}", {name})' for name in names]) + "\n")
