#!/usr/bin/env python3
"""device_code.py TOOL PTX_DIR: device code of other sources than the tree's is refused when it is packed, by one sentence; comments may change; registers and labels
are numbered in their order, in each kernel; texts that lie packed beside each other are not packed again."""
import pathlib
import subprocess
import sys
import tempfile

tool, built = sys.argv[1], pathlib.Path(sys.argv[2])
HEAD = ".version 6.0\n.target sm_50\n"
KERNEL = ".visible .entry {}()\n{{\n.reg .b32 %r<9>;\nmov.u32 %r{}, %tid.x; // %r9\n$L__BB{}:\nadd.u32 %r{}, %r{}, %r{};\n@%p{} bra $L__BB{};\nbra $L__BB{};\n}}\n"
TEXT = HEAD + KERNEL.format("f", 2, "0_3", 1, 2, 8, 4, "0_3", "0_1") + KERNEL.format("g", 5, "1_0", 5, 5, 2, 0, "1_1", "1_0")  # as the compiler writes it
OURS = HEAD + KERNEL.format("f", 1, 1, 2, 1, 3, 1, 1, 2) + KERNEL.format("g", 1, 1, 1, 1, 2, 1, 2, 1)
COMPILER = "import sys; o, d, s, h, t = sys.argv[1:]; open(o, 'w').write(t); open(d, 'w').write(f'{o}: \\\\\\n  {s} {h} \\\\\\n  /usr/include/x.h\\n')"


def run(*arguments):
    return subprocess.run([sys.executable, tool, *map(str, arguments)], capture_output=True, text=True)


def refused(done, *words):
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and all(w in done.stderr for w in words), done


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder, "tree")
    text, packed = pathlib.Path(folder, "one.base.ptx"), pathlib.Path(folder, "one.packed")
    (root / "src").mkdir(parents=True)
    source, params = root / "src/one.cu", root / "src/one_params.h"
    source.write_text('#include "one_params.h"\n')
    params.write_text("/* what both sides know */\ntypedef struct { int n; } one_params; // one\n")
    done = run("compile", root, text, f"{text}.d", sys.executable, "-c", COMPILER, text, f"{text}.d", source, params, TEXT)
    assert done.returncode == 0 and text.read_text().startswith(OURS) and text.read_text().count("// made of src/one") == 2, done
    assert run("pack", root, packed, text).returncode == 0
    before = packed.read_bytes()
    elsewhere = pathlib.Path(folder, "elsewhere", packed.name)  # a packed file beside the texts is copied, if it is complete and made from these texts
    elsewhere.parent.mkdir()
    for beside, copied in ((before[:-1] + bytes([before[-1] ^ 1]), True), (before[:-1], False), (before.replace(b'"of": "', b'"of": "0'), False)):
        packed.write_bytes(beside)
        assert run("pack", root, elsewhere, text).returncode == 0 and elsewhere.read_bytes() == (beside if copied else before)
    packed.unlink()
    params.write_text("/* what host and device know */\n\ntypedef struct {  int n; } one_params;\n")
    assert run("pack", root, packed, text).returncode == 0 and packed.read_bytes() == before
    params.write_text("typedef struct { int m, n; } one_params;\n")
    refused(run("pack", root, packed, text), "one.base.ptx", "src/one_params.h", "-Dptx_dir")
    params.unlink()
    refused(run("pack", root, packed, text), "src/one_params.h", "-Dptx_dir")
    text.write_text(TEXT)
    refused(run("pack", root, packed, text), "one.base.ptx", "-Dptx_dir")
    text.write_text(TEXT + "\u00e9")
    refused(run("pack", root, packed, text), "one.base.ptx is not a PTX file")
    assert run("compile", root, text, f"{text}.d", sys.executable, "-c", "raise SystemExit(3)").returncode == 3

# The wheel's machine code is of kernels that exist.
for line in pathlib.Path(tool).with_name("first-kernels").read_text().splitlines():
    module, kernel = line.split(", ")
    assert f".entry {kernel}(" in (built / f"{module}.ptx").read_text(), line

# The build's own texts, with one of another build among them.
texts = sorted(built.glob("norm_short_f32.*.ptx"))
with tempfile.TemporaryDirectory() as folder:
    assert texts
    other = pathlib.Path(folder, texts[0].name)
    lines = texts[0].read_text().splitlines()
    own = next(i for i, line in enumerate(lines) if line.startswith("// made of ") and line.split()[3].endswith(".cu"))
    lines[own] = lines[own][:-1] + ("0" if lines[own][-1] != "0" else "1")
    other.write_text("\n".join(lines) + "\n")
    here = pathlib.Path(tool).resolve().parent.parent
    refused(run("pack", here, pathlib.Path(folder, "x.packed"), other), texts[0].name, lines[own].split()[3])
    assert run("pack", here, pathlib.Path(folder, "x.packed"), texts[0]).returncode == 0
