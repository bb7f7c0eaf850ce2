#!/usr/bin/env python3
"""rooms.py BUILD CC...: ROOMS holds at link time: no object file of this build needs a symbol of a room above its own; one that does is
found; and the operators' object files link and run without graphs and models."""
import importlib.util, json, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
build, cc = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
BELOW = ["src/base", "src/cpu", "src/cuda", "src/runtime", "src/check", "src/ops"]
spec = importlib.util.spec_from_file_location("lint_rooms", ROOT / "tools/lint_rooms.py")
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)
lint.read_law()


def found(folder):
    lint.problems.clear()
    lint.check_symbols(folder)
    return list(lint.problems)


def compile_c(text, out, *flags):
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*cc, "-x", "c", "-c", "-o", out, "-", *flags], input=text, text=True, check=True)


def check_planted(folder):
    planted = {  # source: its text, and what is found
        "src/graph/planted_graph.c": ("int kr_planted(void); int kr_planted(void) { return 1; } int krait_planted(void); int krait_planted(void) { return 1; }", None),
        "src/ops/planted/planted.c": ("int kr_planted(void); int kr_op_planted(void); int kr_op_planted(void) { return kr_planted(); }", "src/ops/planted/planted.c: src/ops may not use kr_planted of src/graph"),
        "src/runtime/planted_public.c": ("int krait_planted(void); int kr_public(void); int kr_public(void) { return krait_planted(); }", "src/runtime/planted_public.c: src/runtime may not use krait_planted of src/graph"),
        "src/blocks/planted_block.c": ("int kr_planted(void); int kr_block(void); int kr_block(void) { return kr_planted(); }", None),
        "cli/planted_verb.c": ("int krait_planted(void); int cli_verb(void); int cli_verb(void) { return krait_planted(); }", None),
        "cli/planted_inside.c": ("int kr_planted(void); int cli_inside(void); int cli_inside(void) { return kr_planted(); }", "cli/planted_inside.c: cli may not use kr_planted of src/graph"),
    }
    commands = []
    for i, (source, (text, _)) in enumerate(planted.items()):
        output = f"src/libkrait_core.a.p/{i}.o"
        commands.append({"directory": str(folder), "file": str(ROOT / source), "output": output})
        compile_c(text, folder / output)
    (folder / "compile_commands.json").write_text(json.dumps(commands))
    wanted = [why for _, why in planted.values() if why]
    assert sorted(found(folder)) == sorted(wanted), found(folder)
    (folder / commands[0]["output"]).unlink()
    assert "are not built" in found(folder)[0]


def check_alone(folder):
    objects = [made for made, room, source in lint.objects_of(build) if room in BELOW]
    includes = [f"-I{ROOT / room}" for room in BELOW] + [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src/cuda/dev'}"]
    subprocess.run([sys.executable, ROOT / "tools/device_code.py", "table", folder / "ptx_none.c"], check=True)
    program = folder / "alone"
    subprocess.run([*cc, "-std=gnu11", *includes, "-o", program, ROOT / "tests/ops/alone.c", folder / "ptx_none.c", *objects, "-lm", "-ldl", "-lpthread"], check=True)
    print(subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip())


problems = found(build)
assert not problems, "\n".join(problems)
with tempfile.TemporaryDirectory() as folder:
    check_planted(pathlib.Path(folder))
with tempfile.TemporaryDirectory() as folder:
    check_alone(pathlib.Path(folder))
