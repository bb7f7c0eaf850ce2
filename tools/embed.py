#!/usr/bin/env python3
"""embed.py OUT.c FILE...: a C file that holds each file's bytes (.incbin) and the tables that find them. Files are PTX texts,
MODULE.TIER.ptx, and machine code for one architecture, MODULE.TIER.sm_NN.cubin. Texts lose their comments and most of their
white space, register numbers become distances, and what was said before, in this text or another, becomes a reference: modules
for other types and tiers say much again, farther away than an archive looks back. src/cuda/ptx_text.c reads this."""
import pathlib, re, sys

REFERENCE = b"\1"  # then where what it stands for begins, from the end of the last reference's (first: from the text's own begin), and its bytes
LEAST_STATEMENTS, LEAST_BYTES = 3, 24
out, paths = pathlib.Path(sys.argv[1]), [pathlib.Path(p).resolve() for p in sys.argv[2:]]


def shortened(path):
    """The text without what the assembler does not mind, registers as src/cuda/ptx_text.c reads them."""
    text = re.sub(rb"//[^\n]*", b"", path.read_bytes())
    text = re.sub(rb"\n[ \n]*", b"\n", re.sub(rb"[ \t]+", b" ", text)).replace(b", ", b",")
    assert text.isascii() and REFERENCE not in text and not re.search(rb"%[a-z]{1,2}0\d", text), path
    last = {}

    def shorter(match):
        kind, number = match[1], int(match[2])
        distance, last[kind] = number - last.get(kind, 0), number
        return b"%" + kind + bytes([192 + distance]) if -64 <= distance < 64 else match[0]

    return re.sub(rb"%([a-z]{1,2})(\d+)", shorter, text)


def number(n):
    """Seven bits a byte, the least first; all but the last byte have the eighth."""
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + number(n >> 7)


def reference(begin, copied, n_bytes):
    distance = begin - copied
    return REFERENCE + number(2 * distance if distance >= 0 else -2 * distance - 1) + number(n_bytes)


class Packer:
    """Statements one after the other; where some that were kept as they are come again, a reference to them."""

    def __init__(self):
        self.blob, self.kept, self.begins, self.places = bytearray(), [], [], {}

    def keep(self, statement):
        """None: nothing that could be referred to."""
        self.kept.append(statement)
        self.begins.append(len(self.blob))
        self.blob += statement or b""
        place = len(self.kept) - LEAST_STATEMENTS
        if place >= 0 and None not in self.kept[place:]:
            self.places.setdefault(tuple(self.kept[place:]), place)

    def n_again(self, statements, i, place):
        n = 0
        while i + n < len(statements) and place + n < len(self.kept) and self.kept[place + n] == statements[i + n]:
            n += 1
        return n

    def add(self, text):
        statements, i, copied = re.findall(rb"[^;]*;|[^;]+$", text), 0, len(self.blob)
        self.keep(None)
        while i < len(statements):
            place = self.places.get(tuple(statements[i:i + LEAST_STATEMENTS]))
            n = 0 if place is None else self.n_again(statements, i, place)
            n_bytes = sum(map(len, statements[i:i + n]))
            if n_bytes < LEAST_BYTES:
                self.keep(statements[i])
                i += 1
                continue
            begin = self.begins[place]
            self.blob += reference(begin, copied, n_bytes)
            self.keep(None)
            copied, i = begin + n_bytes, i + n


texts, cubins = ([p for p in paths if p.suffix == suffix] for suffix in (".ptx", ".cubin"))
packer, begins = Packer(), []
for path in texts:
    begins.append(len(packer.blob))
    packer.add(shortened(path))
begins.append(len(packer.blob))
packed = out.parent / (out.name + ".packed")
packed.write_bytes(packer.blob)
lines = ['/* ptx_table.c: made by tools/embed.py: the device code of this build. */', '#include "cuda.h"', '#include <krait/krait.h>', '#include <string.h>', '']
for name, path in [("kr_code", packed.resolve())] + [(f"kr_code_{i}", path) for i, path in enumerate(cubins)]:
    lines.append(f'__asm__(".pushsection .rodata\\n.balign 16\\n.globl {name}\\n.hidden {name}\\n{name}:\\n.incbin \\"{path}\\"\\n.byte 0\\n.popsection\\n");')
    lines.append(f"extern const char {name}[];")
lines += ["", f"static char *kept[{len(texts) + 1}];", "static const struct { const char *module, *tier; uint32_t begin, end; } texts[] = {"]
for i, path in enumerate(texts):
    module, tier = path.name.split(".")[:2]
    lines.append(f'  {{"{module}", "{tier}", {begins[i]}, {begins[i + 1]}}},')
lines += ["  {0, 0, 0, 0}};", "", "static const kr_cubin cubins[] = {"]
for i, path in enumerate(cubins):
    module, tier, arch = path.name.split(".")[:3]
    lines.append(f'  {{"{module}", "{tier}", {arch[3:]}, kr_code_{i}, {path.stat().st_size}}},')
lines += ["  {0, 0, 0, 0, 0}};", "",
"int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {",
f"  if (index < 0 || index >= {len(texts)}) return 0;",
"  *module = texts[index].module, *tier = texts[index].tier;",
"  if (text) *text = kr_ptx_unpack(kr_code + texts[index].begin, kr_code + texts[index].end, &kept[index]), *bytes = *text ? strlen(*text) : 0;",
"  return 1;", "}", "",
f"const kr_cubin *kr_cuda_cubin(int index) {{ return index >= 0 && index < {len(cubins)} ? &cubins[index] : NULL; }}", "",
"uint64_t kr_cuda_built_tiers(void) {", "  uint64_t caps = 0;"]
for tier in sorted({p.name.split(".")[1] for p in texts}):
    lines.append(f"  caps |= KRAIT_CAP_CUDA_{tier.upper()};")
lines += ["  return caps;", "}", ""]
out.write_text("\n".join(lines))
