#!/usr/bin/env python3
"""abi.py BUILD: programs built with an older release's headers (tests/abi/VERSION) keep working: no changed constant,
function type or field offset, no shorter struct; and one such program runs on today's library."""
import pathlib, re, subprocess, sys, tempfile

ROOT, BUILD = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(sys.argv[1]).resolve()
problems = []


def read(folder):
    text = "\n".join((folder / f"{n}.h").read_text() for n in ("krait", "ops", "model", "doctor", "bench"))
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


def constants(text):
    found = {m[1]: " ".join(m[2].split()) for m in re.finditer(r"^#define (KRAIT_\w+(?:\(\w+\))?)[ \t]+(.+)$", text, re.M)}
    for body in re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", text):
        for item in body.split(","):
            if "=" in item:
                name, value = item.split("=")
                found[name.strip()] = value.strip()
    return {k: v for k, v in found.items() if not re.match(r"KRAIT_(VERSION|API|\w+_H$)", k)}


def functions(text):
    """name: result and types of the parameters, without their names."""
    found = {}
    for m in re.finditer(r"^KRAIT_API\s+([^;]+?)(\w+)\s*\(([^;]*)\)\s*;", text, re.M):
        parameters, depth, word = [], 0, ""
        for c in m[3] + ",":
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                word = " ".join(word.split())
                parameters.append(re.sub(r"(?<=[\s*])\w+$", "", word).replace(" ", "") if word != "void" else word)
                word = ""
            else:
                word += c
        found[m[2]] = (" ".join(m[1].split()), parameters)
    return found


def structs(text):
    found = {}
    for m in re.finditer(r"typedef struct (\w+)\s*\{(.*?)\}\s*\1\s*;", text, re.S):
        fields = []
        for declaration in m[2].split(";"):
            function = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
            names = [function[1]] if function else [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", d)[1] for d in declaration.split(",") if d.strip()]
            fields += [n for n in names if not n.startswith("reserved")]  # had to be zero: may become a field
        found[m[1]] = fields
    return found


def layout(found, include, scratch):
    """{struct or struct.field: bytes} in the compiler's layout."""
    lines = ["#include <stddef.h>", "#include <stdio.h>"] + [f"#include <krait/{n}.h>" for n in ("krait", "ops", "model", "doctor", "bench")] + ["int main(void) {"]
    for name, fields in found.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{f} %zu\\n", offsetof({name}, {f}));' for f in fields]
    (scratch / "layout.c").write_text("\n".join(lines + ["return 0; }"]))
    subprocess.run(["gcc", "-std=c99", f"-I{include}", scratch / "layout.c", "-o", scratch / "layout"], check=True)
    out = subprocess.run([scratch / "layout"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}


def compare(what, old, new):
    for name, value in old.items():
        if name not in new:
            problems.append(f"{what} {name} is gone")
        elif new[name] != value:
            problems.append(f"{what} {name} was {value}, is {new[name]}")


def check(release, scratch):
    include = scratch / "include"
    include.mkdir(exist_ok=True)
    link = include / "krait"
    link.unlink(missing_ok=True)
    link.symlink_to(release)
    old, new = read(release), read(ROOT / "include/krait")
    compare("constant", constants(old), constants(new))
    compare("function", functions(old), functions(new))
    was, now = layout(structs(old), include, scratch), layout(structs(new), ROOT / "include", scratch)
    compare("field", {k: v for k, v in was.items() if "." in k}, now)
    for name, size in was.items():
        if "." not in name and now.get(name, 0) < size:
            problems.append(f"struct {name} had {size} bytes, has {now.get(name, 0)}")
    program = scratch / "old_caller"
    subprocess.run(["gcc", "-std=c99", f"-I{include}", ROOT / "tests/pkg/old_caller.c", "-o", program, f"-L{BUILD}/pkg", "-lkrait", f"-Wl,-rpath,{BUILD}/pkg"], check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    if result.returncode:
        problems.append(f"a program built with {release.name}'s headers fails: {result.stdout}{result.stderr}")
    print(f"{release.name}: {len(constants(old))} constants, {len(functions(old))} functions, {len(structs(old))} structs with {len(was)} places")
    assert len(functions(old)) > 50 and len(structs(old)) > 15, "the headers were not understood"


with tempfile.TemporaryDirectory() as folder:
    for release in sorted((ROOT / "tests/abi").iterdir()):
        check(release, pathlib.Path(folder))
print("\n".join(problems) or "nothing changed for older callers")
sys.exit(1 if problems else 0)
