#!/usr/bin/env python3
"""embed.py OUT.c FILE...: a C file that holds each file's bytes (.incbin) and the tables that find them. Files are PTX texts,
MODULE.TIER.ptx, and machine code for one architecture, MODULE.TIER.sm_NN.cubin. Texts lose their comments and most of their
white space, and register numbers become distances: packed archives of them are a quarter smaller."""
import pathlib, re, sys

out, paths = pathlib.Path(sys.argv[1]), [pathlib.Path(p).resolve() for p in sys.argv[2:]]


def packed(path):
    """A copy of the text beside OUT.c, without what the assembler does not mind, registers as src/cuda/ptx_text.c reads them."""
    text = re.sub(rb"//[^\n]*", b"", path.read_bytes())
    text = re.sub(rb"\n[ \n]*", b"\n", re.sub(rb"[ \t]+", b" ", text)).replace(b", ", b",")
    assert text.isascii() and not re.search(rb"%[a-z]{1,2}0\d", text), path
    last = {}

    def shorter(match):
        kind, number = match[1], int(match[2])
        distance, last[kind] = number - last.get(kind, 0), number
        return b"%" + kind + bytes([192 + distance]) if -64 <= distance < 64 else match[0]

    copy = out.parent / (out.name + ".texts") / path.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(re.sub(rb"%([a-z]{1,2})(\d+)", shorter, text))
    return copy.resolve()


texts, cubins = ([p for p in paths if p.suffix == suffix] for suffix in (".ptx", ".cubin"))
texts = [packed(path) for path in texts]
lines = ['/* ptx_table.c: made by tools/embed.py: the device code of this build. */', '#include "cuda.h"', '#include <krait/krait.h>', '#include <string.h>', '']
for i, path in enumerate(texts + cubins):
    lines.append(f'__asm__(".pushsection .rodata\\n.balign 16\\n.globl kr_code_{i}\\n.hidden kr_code_{i}\\nkr_code_{i}:\\n.incbin \\"{path}\\"\\n.byte 0\\n.popsection\\n");')
    lines.append(f"extern const char kr_code_{i}[];")
lines += ["", f"static char *kept[{len(texts) + 1}];", "static const struct { const char *module, *tier, *packed; } texts[] = {"]
for i, path in enumerate(texts):
    module, tier = path.name.split(".")[:2]
    lines.append(f'  {{"{module}", "{tier}", kr_code_{i}}},')
lines += ["  {0, 0, 0}};", "", "static const kr_cubin cubins[] = {"]
for i, path in enumerate(cubins):
    module, tier, arch = path.name.split(".")[:3]
    lines.append(f'  {{"{module}", "{tier}", {arch[3:]}, kr_code_{len(texts) + i}, {path.stat().st_size}}},')
lines += ["  {0, 0, 0, 0, 0}};", "",
"int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {",
f"  if (index < 0 || index >= {len(texts)}) return 0;",
"  *module = texts[index].module, *tier = texts[index].tier;",
"  if (text) *text = kr_ptx_unpack(texts[index].packed, &kept[index]), *bytes = *text ? strlen(*text) : 0;",
"  return 1;", "}", "",
f"const kr_cubin *kr_cuda_cubin(int index) {{ return index >= 0 && index < {len(cubins)} ? &cubins[index] : NULL; }}", "",
"uint64_t kr_cuda_built_tiers(void) {", "  uint64_t caps = 0;"]
for tier in sorted({p.name.split(".")[1] for p in texts}):
    lines.append(f"  caps |= KRAIT_CAP_CUDA_{tier.upper()};")
lines += ["  return caps;", "}", ""]
out.write_text("\n".join(lines))
