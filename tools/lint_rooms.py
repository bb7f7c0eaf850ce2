#!/usr/bin/env python3
"""lint_rooms.py [BUILD]: checks the layering: ROOMS' include rules, calls reserved to one room, file heads, sizes, paths,
names and links in documents, the glossary; and, of a finished build in that folder, that no object file needs a symbol of a room
that its own may not use."""
import json, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCED = {  # pattern: rooms that may use it
    r"\b(malloc|calloc|realloc|aligned_alloc)\s*\(": ("src/base", "cli", "plugins"),
    r"\bgetenv\s*\(": ("src/base", "cli"),
    r"\b(printf|puts|putchar)\s*\(": ("cli", "tests"),
    r"(?<![_\w])(exit|abort)\s*\(": ("cli", "tests"),
    r"\b(strcpy|strcat|sprintf|gets)\s*\(": (),
}
MACHINE_PATH = re.compile(r"(^|[^\w.])/(work|home|farm|root)/")
MAX_FILE_LINES = 1000
MAX_COLUMNS = 120
problems = []
LAW, LIBS = {}, {}  # room: the rooms that it may include; a library's prefix: the rooms that may


def room_of(path):
    """The longest folder that ROOMS names; else its own."""
    parts = path.relative_to(ROOT).parts
    for n in range(len(parts) - 1, 0, -1):
        if "/".join(parts[:n]) in LAW:
            return "/".join(parts[:n])
    return "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def read_law():
    for line in (ROOT / "ROOMS").read_text().splitlines():
        if line.startswith("#") or ":" not in line:
            continue
        room, rest = line.split(":", 1)
        words = rest.split()
        LAW[room] = {w for w in words if not w.startswith("lib:")}
        for w in words:
            if w.startswith("lib:"):
                LIBS.setdefault(w[4:], set()).add(room)


def tracked(*suffixes):
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True).stdout
    return [ROOT / f for f in out.splitlines() if f.endswith(suffixes) and (ROOT / f).is_file()]


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def may_use(room, other):
    return other == room or "*" in LAW[room] or other.removeprefix("src/") in LAW[room]


def check_includes(path, text, owner):
    room = room_of(path)
    if room == "tools":  # a build tool, not part of the product
        return
    if room not in LAW:
        problems.append(f"{path.relative_to(ROOT)}: room '{room}' is not in ROOMS")
        return
    for quoted, angled in re.findall(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', text, re.M):
        if quoted:
            target = owner.get(pathlib.Path(quoted).name)
            if quoted == "emulator.h" and path.name == "kernel.cuh":  # only where KR_EMULATE is defined: the tests
                continue
            if target and not may_use(room, target):
                problems.append(f"{path.relative_to(ROOT)}: {room} may not include {quoted} of {target}")
        for lib, rooms in LIBS.items():
            if angled and angled.startswith(lib) and room not in rooms and "*" not in LAW[room]:
                problems.append(f"{path.relative_to(ROOT)}: only {', '.join(sorted(rooms))} may include <{angled}>")


def check_calls(path, text):
    room = room_of(path)
    for pattern, rooms in FENCED.items():
        if room in rooms or room in ("tests", "tools", "examples"):
            continue
        for number, line in enumerate(strip_comments(text).splitlines(), 1):
            if re.search(pattern, line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: forbidden here: {line.strip()[:80]}")


DATED = ("docs/speed/", "docs/GPUS.md", "CHANGELOG.md")  # dated records
FOLDERS = r"(?:src|tests|tools|docs|cli|examples|include|pkg|python|demo)"


def check_documents():
    """Paths, file names and functions named in a document."""
    files = tracked("")
    names, words = {p.name for p in files}, set()
    for path in files:
        if path.suffix in (".c", ".h", ".cu", ".cuh", ".py", ".def"):
            words.update(re.findall(r"\b(?:kr|krait|cli)_\w+", path.read_text(errors="replace")))
    for path in files:
        name = str(path.relative_to(ROOT))
        if path.suffix != ".md" or name.startswith(DATED):
            continue
        text = path.read_text()
        for found in set(re.findall(rf"(?<![\w/.-]){FOLDERS}/[\w./-]*\w(?![\w*<])", text)):
            if not (ROOT / found).exists() and not any((ROOT / "tests").glob(found + ".*")) and not re.search(r"\b(VERSION|NAME|MODULE|TIER)\b", found):
                problems.append(f"{name}: {found} does not exist")
        for found in set(re.findall(r"`([a-z]\w+\.(?:c|h|cu|cuh|sig|py|def))`", text)):
            if found not in names:
                problems.append(f"{name}: {found} does not exist")
        for found in set(re.findall(r"`((?:kr|krait|cli)_\w+)(?:\(\))?`", text)):
            if not any(w.startswith(found) for w in words):
                problems.append(f"{name}: {found} does not exist")


def anchors_of(text):
    """As a reader of the page sees its headings: `## By type and tier` is #by-type-and-tier."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def check_links():
    """Links of documents to files and headings."""
    for path in (p for p in tracked(".md")):
        for link, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
            to = path.parent / link if link else path
            if not to.exists():
                problems.append(f"{path.relative_to(ROOT)}: the link {link} leads nowhere")
            elif heading and heading not in anchors_of(to.read_text()):
                problems.append(f"{path.relative_to(ROOT)}: {link}#{heading} is no heading there")


def check_tools():
    """Every file of tools/ has a line in its README.md, and the lines name files."""
    listed = set(re.findall(r"`([\w./-]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", (ROOT / "tools/README.md").read_text(), re.M))))
    files = {p.relative_to(ROOT / "tools").parts[0] + "/" * (len(p.relative_to(ROOT / "tools").parts) > 1) for p in tracked("") if p.is_relative_to(ROOT / "tools")} - {"README.md"}
    problems.extend(f"tools/README.md: no line of {name}" for name in sorted(files - listed))
    problems.extend(f"tools/README.md: {name} does not exist" for name in sorted(listed - files))


def check_equations():
    """Every operator stands in a heading of docs/OPS.md, under which its equation is."""
    said = set(re.findall(r"\w+", " ".join(re.findall(r"^## (.*)$", (ROOT / "docs/OPS.md").read_text(), re.M))))
    for op in re.findall(r"^KR_OP\((\w+)\)", (ROOT / "src/ops/ops.def").read_text(), re.M):
        if op.removesuffix("_bwd") not in said:
            problems.append(f"docs/OPS.md: no equation of {op}")


def check_glossary():
    """Names that are gone (tools/glossary.txt), and static functions of one name in a room or without an object."""
    gone = [line.rsplit(" => ", 1) for line in (ROOT / "tools/glossary.txt").read_text().splitlines() if line and not line.startswith("#")]
    old = re.compile("|".join(f"(?P<g{i}>{pattern})" for i, (pattern, _) in enumerate(gone)))
    statics = {}
    for path in tracked(".c", ".h", ".cu", ".cuh", ".def", ".sig", ".py", ".md", ".build", "ROOMS"):
        name = str(path.relative_to(ROOT))
        if name.startswith(DATED):
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            for found in old.finditer(line):
                problems.append(f"{name}:{number}: {found.group()!r} is gone; write {gone[int(found.lastgroup[1:])][1]}")
        if path.suffix == ".c" and room_of(path) != "tests" or name.startswith("tests/"):
            room = "/".join(name.split("/")[:2]) if name.startswith("tests/") else room_of(path)
            for function in set(re.findall(r"^static\s+(?:inline\s+)?[^;={}()\n]*?\b(\w+)\((?!\()", strip_comments(text) if path.suffix == ".c" else "", re.M)):
                if function in ("run", "take", "record", "measure", "plan_of", "lay_out"):
                    problems.append(f"{name}: static {function}() says not what it acts on")
                statics.setdefault((room, function), []).append(name)
    for (room, function), names in statics.items():
        if len(names) > 1 and room != "examples" and not room.startswith("tests") and function != "main":
            problems.append(f"{names[1]}: static {function}() is also in {names[0]}: unique in a room, verb_object")


PARTS = re.compile(r"src/lib(krait_core|krait_denoiser|simd_\w+)\.a\.p/|krait\.p/")  # the program's objects, once each


def objects_of(build):
    """(object, room, source) of every object file of the program; sources made by the build belong to its folder's room."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source, made = pathlib.Path(entry["directory"], entry["file"]).resolve(), pathlib.Path(entry["directory"], entry["output"])
        if not PARTS.match(entry["output"]):
            continue
        inside = ROOT / source.relative_to(build) if build in source.parents else source
        yield made, room_of(inside), str(inside.relative_to(ROOT))


def symbols_of(objects):
    """Per object, the names that it defines and those that it needs."""
    text = subprocess.run(["nm", "-A", "-P", "-g", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    defined, needed = {o: set() for o in objects}, {o: set() for o in objects}
    for path, name, kind in re.findall(r"^(\S+): (\S+) (\w)", text, re.M):
        (needed if kind in "Uw" else defined)[pathlib.Path(path)].add(name)
    return defined, needed


def reach(room):
    """The room, and all rooms below it; for the program and the like, which include only include/krait, all rooms."""
    if not room.startswith("src/"):
        return {"*"}
    found, rest = set(), [room]
    while rest:
        one = rest.pop()
        if one not in found:
            found.add(one)
            rest += ["src/" + other for other in LAW.get(one, set())]
    return found


def check_symbols(build):
    """What a room's headers do not show: a function of an upper room, declared by hand."""
    objects = {made: (room, source) for made, room, source in objects_of(build.resolve())}
    missing = [o for o in objects if not o.exists()]
    if missing:
        return problems.append(f"{build}: {len(missing)} object files are not built, {objects[missing[0]][1]} first (make build): their symbols cannot be checked")
    defined, needed = symbols_of(list(objects))
    owners = {}
    for made, names in defined.items():
        for name in names:
            owners.setdefault(name, set()).add(objects[made][0])
    for made in objects:
        room, source = objects[made]
        for name in sorted(needed[made]):
            rooms = owners.get(name, set())
            allowed = reach(room) if name.startswith("krait_") else {room} | LAW.get(room, set())  # public: of any room below
            if rooms and room in LAW and not any(r not in LAW or "*" in allowed or r in allowed or r.removeprefix("src/") in allowed for r in rooms):
                problems.append(f"{source}: {room} may not use {name} of {', '.join(sorted(rooms))}")
    return len(objects)


def main():
    read_law()
    n_objects = check_symbols(pathlib.Path(sys.argv[1])) if len(sys.argv) > 1 else None
    sources = tracked(".c", ".h", ".cu", ".cuh", ".def")
    owner = {p.name: room_of(p) for p in sorted(sources, key=lambda p: room_of(p) != "tests") if p.suffix != ".c"} # of one name, the source's
    names = {}
    for path in sources:
        text = path.read_text()
        if path.suffix in (".c", ".h", ".cu", ".cuh") and room_of(path) != "include":
            check_includes(path, text, owner)
            check_calls(path, text)
        if not text.lstrip().startswith("/*") and not text.lstrip().startswith("//"):
            problems.append(f"{path.relative_to(ROOT)}: the first lines must say what the file is about")
        if room_of(path) not in ("tests", "include"):
            if path.name in names:
                problems.append(f"{path.relative_to(ROOT)}: same file name as {names[path.name]}")
            names[path.name] = path.relative_to(ROOT)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS and "abi" not in path.parts: # tests/abi keeps released headers unchanged
                problems.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, more than {MAX_COLUMNS} (clang-format -i --lines={number}:{number} breaks it)")
        if len(text.splitlines()) > MAX_FILE_LINES:
            problems.append(f"{path.relative_to(ROOT)}: longer than {MAX_FILE_LINES} lines")
    for path in tracked(".c", ".h", ".py", ".md", ".build", ".yaml", ".yml", ".cu", ".cuh", ".toml", "Makefile", ".sh"):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: machine path")
    check_documents()
    check_links()
    check_tools()
    check_equations()
    check_glossary()
    print("\n".join(problems) if problems else f"lint: {len(sources)} source files pass" + (f", {n_objects} object files" if n_objects else ", symbols were not checked (there is no build)"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
