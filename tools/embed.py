#!/usr/bin/env python3
"""embed.py OUT.c FILE.ptx...: a C file that holds each PTX text as bytes (.incbin) and the table that finds them.
A file is named MODULE.TIER.ptx."""
import pathlib, sys

out, paths = pathlib.Path(sys.argv[1]), [pathlib.Path(p).resolve() for p in sys.argv[2:]]
lines = ['/* ptx_table.c: made by tools/embed.py: every PTX text of this build. */', '#include "cuda.h"', '#include <krait/krait.h>', '']
for i, path in enumerate(paths):
    lines.append(f'__asm__(".pushsection .rodata\\n.balign 16\\n.globl kr_ptx_{i}\\n.hidden kr_ptx_{i}\\nkr_ptx_{i}:\\n.incbin \\"{path}\\"\\n.byte 0\\n.popsection\\n");')
    lines.append(f"extern const char kr_ptx_{i}[];")
lines += ["", "static const struct { const char *module, *tier, *text; size_t bytes; } texts[] = {"]
for i, path in enumerate(paths):
    module, tier = path.name.split(".")[:2]
    lines.append(f'  {{"{module}", "{tier}", kr_ptx_{i}, {path.stat().st_size}}},')
lines += ["  {0, 0, 0, 0}};", "",
"int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {",
f"  if (index < 0 || index >= {len(paths)}) return 0;",
"  *module = texts[index].module, *tier = texts[index].tier, *text = texts[index].text, *bytes = texts[index].bytes;",
"  return 1;", "}", "", "uint64_t kr_cuda_built_tiers(void) {", "  uint64_t caps = 0;"]
for tier in sorted({p.name.split(".")[1] for p in paths}):
    lines.append(f"  caps |= KRAIT_CAP_CUDA_{tier.upper()};")
lines += ["  return caps;", "}", ""]
out.write_text("\n".join(lines))
