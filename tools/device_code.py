#!/usr/bin/env python3
"""Device code in a build, standard library only; src/cuda/ptx_text.c reads the output.
  compile ROOT OUT.ptx OUT.d COMMAND...  runs the compiler, numbers registers and labels anew, then appends the sources
                                         below ROOT that it read, with hashes
  pack ROOT OUT.packed FILE.ptx...       one LZMA stream of the texts, copied if already beside them; fails if a text was
                                         made from other sources than ROOT's
  table OUT.c FILE...                    a C file with .packed files, machine code (MODULE.TIER.sm_NN.cubin) and tables
Within a kernel, registers and labels are numbered from 1 in the order of their first appearance.
A text is packed without comments and redundant blanks, in two parts. The first omits the numbers of registers and
labels: a byte from 128 on encodes the name before the number; 255 is before each kernel. The second has the numbers by
name: 0 is the next new one, n the one that was used n-th last. The first part then repeats itself whatever the
registers are, the second wherever values are used alike, and both compress well."""
import hashlib
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys

SOURCE = "// made of "  # a line of a text: file and hash
NUMBERED = re.compile(rb"(%[a-z]{1,2}|\$L__BB)(?:\d+_)?(0|[1-9]\d*)(?!\w)|//[^\n]*")  # clang: $L__BB, the kernel's number, _ and the label's
KERNEL = re.compile(rb"(?m)^(?=\.visible \.entry )")
TIERS = ["hopper", "ampere", "turing", "base"]  # the best first: what a new GPU takes is unpacked soonest
FILTERS = [{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 26, "lc": 3, "lp": 0, "pb": 0, "mode": lzma.MODE_NORMAL, "nice_len": 273, "mf": lzma.MF_BT4, "depth": 200}]


def die(sentence):
    sys.exit("device_code: " + sentence)


def hash_of(path):
    """Hash of what the compiler sees: comments and blanks may change."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.S)
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]


def renumbered(text):
    """One of the many texts that differ in numbers only."""
    def of_kernel(kernel):
        new = {}

        def replace(m):
            if not m[1]:
                return m[0]
            numbers = new.setdefault(m[1], {})
            return b"%s%d" % (m[1], numbers.setdefault(m[2], len(numbers) + 1))

        return NUMBERED.sub(replace, kernel)

    return b"".join(map(of_kernel, KERNEL.split(text)))


def compile_text(root, out, depfile, *command):
    done = subprocess.run(command)
    if done.returncode:
        sys.exit(done.returncode)
    named = pathlib.Path(depfile).read_text().replace("\\\n", " ").split(":", 1)[1].split()
    inside = {os.path.relpath(os.path.realpath(name), os.path.realpath(root)) for name in named}
    lines = [SOURCE + name + " " + hash_of(pathlib.Path(root, name)) for name in sorted(inside) if not name.startswith("..")]
    text = renumbered(pathlib.Path(out).read_bytes())
    pathlib.Path(out).write_bytes(text + "\n".join(lines).encode("ascii") + b"\n")


def check_sources(root, path, text, known):
    made_of = [line[len(SOURCE):].rsplit(" ", 1) for line in text.splitlines() if line.startswith(SOURCE)]
    remedy = "build without -Dptx_dir (and without a source archive's ptx folder), or with a folder written by a build of this tree"
    if not made_of:
        die(f"{path} does not list its sources (from an older build?): {remedy}")
    for name, hash_then in made_of:
        if name not in known:
            known[name] = hash_of(pathlib.Path(root, name)) if pathlib.Path(root, name).is_file() else None
        if known[name] != hash_then:
            die(f"{path} was made from a different {name} than this tree's: {remedy}")


def number(n):
    """LEB128: seven bits per byte, lowest first; all but the last byte have the eighth bit set."""
    return bytes([n & 127 | 128]) + number(n >> 7) if n > 127 else bytes([n])


def packed_text(text):
    ranks = {}

    def of_kernel(kernel):
        used = {}  # of each name, the last used first

        def replace(m):
            numbers, here = used.setdefault(m[1], []), ranks.setdefault(m[1], bytearray())
            rank = numbers.index(m[2]) + 1 if int(m[2]) <= len(numbers) else 0
            numbers.insert(0, numbers.pop(rank - 1) if rank else m[2])
            here += number(rank)
            return bytes([128 + list(ranks).index(m[1])])

        return NUMBERED.sub(replace, kernel)

    bare = b"\xff".join(map(of_kernel, KERNEL.split(text)))
    heads = b"".join(number(len(name)) + name + number(len(values)) for name, values in ranks.items())
    return number(len(ranks)) + heads + number(len(bare)) + bare + b"".join(ranks.values())


def without_blanks(text):
    text = re.sub(rb"[ \t]+", b" ", re.sub(rb"//[^\n]*", b"", text))
    return re.sub(rb" ?\n[ \n]*", b"\n", text).replace(b", ", b",")


def name_of(path):
    """a/MODULE.TIER.sm_NN.cubin: MODULE, TIER and, for machine code, NN."""
    parts = pathlib.Path(path).name.split(".")
    if len(parts) < 3:
        die(f"{path} is not named MODULE.TIER.ptx")
    return parts[0], parts[1], int(parts[2][3:]) if parts[2].startswith("sm_") else 0


def packed_already(path, made_of):
    """Another build's .packed file, if packed from the same texts in the same way."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
            stream, head = file.read(), json.loads(line)
    except (OSError, ValueError):
        return None
    return line + stream if head.get("of") == made_of and head.get("packed") == len(stream) else None


def pack(root, out, *paths):
    paths = sorted(paths, key=lambda path: TIERS.index(name_of(path)[1]))
    stream, texts, known, raws = b"", [], {}, [pathlib.Path(path).read_bytes() for path in paths]
    for path, raw in zip(paths, raws):
        if not raw.isascii() or b"\0" in raw:
            die(f"{path} is not a PTX file")
        check_sources(root, path, raw.decode("ascii"), known)
    made_of = hashlib.sha256(b"".join([pathlib.Path(__file__).read_bytes(), *raws])).hexdigest()
    ready = packed_already(pathlib.Path(paths[0]).with_name(pathlib.Path(out).name), made_of)
    if ready:
        pathlib.Path(out).write_bytes(ready)
        return
    for path, raw in zip(paths, raws):
        bare = renumbered(without_blanks(raw))
        begin, stream = len(stream), stream + packed_text(bare)
        texts.append((*name_of(path)[:2], begin, len(stream), len(bare)))
    packed = lzma.compress(stream, format=lzma.FORMAT_RAW, filters=FILTERS)
    head = {"bytes": len(stream), "texts": texts, "of": made_of, "packed": len(packed)}
    pathlib.Path(out).write_bytes(json.dumps(head).encode() + b"\n" + packed)


def table(out, *paths):
    streams, texts, cubins, held = [], [], [], []
    for i, path in enumerate(paths):
        skip = 0
        if path.endswith(".cubin"):
            module, tier, capability = name_of(path)
            cubins.append(f'{{"{module}", "{tier}", {capability}, kr_code_{i}, {os.path.getsize(path)}}}')
        else:
            with open(path, "rb") as file:
                head, skip = json.loads(file.readline()), file.tell()
            texts += [f'{{"{module}", "{tier}", {len(streams)}, {begin}, {end}, {n}}}' for module, tier, begin, end, n in head["texts"]]
            streams.append(f'{{kr_code_{i}, {os.path.getsize(path) - skip}, {head["bytes"]}}}')
        held.append(f'__asm__(".pushsection .rodata\\n.balign 16\\n.globl kr_code_{i}\\n.hidden kr_code_{i}\\nkr_code_{i}:\\n.incbin \\"{path}\\", {skip}\\n'
                    f'.popsection\\n");\nextern const char kr_code_{i}[];\n')
    with open(out, "w", encoding="utf-8") as file:
        file.write('/* Generated by tools/device_code.py: device code of this build. */\n#include "packed_code.h"\n\n' + "".join(held))
        for kind, rows in (("kr_packed_stream kr_packed_streams", streams), ("kr_packed_text kr_packed_texts", texts), ("kr_cubin kr_packed_cubins", cubins)):
            file.write("\nconst %s[] = {\n%s};\n" % (kind, "".join(f"  {row},\n" for row in rows + ["{0}"])))
        file.write(f"\nconst int kr_n_packed_texts = {len(texts)}, kr_n_packed_cubins = {len(cubins)};\nchar *kr_kept_texts[{len(texts) + 1}];\n")


if __name__ == "__main__":
    {"compile": compile_text, "pack": pack, "table": table}[sys.argv[1]](*sys.argv[2:])
