#!/usr/bin/env python3
"""embed_file.py IN OUT NAME: writes a C file that embeds IN (.incbin) as kr_embed_NAME with its size, followed by a NUL
not counted in the size."""
import pathlib, sys

path, name = pathlib.Path(sys.argv[1]).resolve(), "kr_embed_" + sys.argv[3]
pathlib.Path(sys.argv[2]).write_text(f"""/* Made from {path.name} by tools/embed_file.py. */
#include <stddef.h>
__asm__(".pushsection .rodata\\n.balign 64\\n.globl {name}\\n.hidden {name}\\n{name}:\\n.incbin \\"{path}\\"\\n.byte 0\\n.popsection\\n");
extern const unsigned char {name}[];
extern const size_t {name}_bytes;
const size_t {name}_bytes = {path.stat().st_size};
""")
