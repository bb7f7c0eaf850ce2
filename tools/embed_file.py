#!/usr/bin/env python3
"""embed_file.py IN OUT NAME: writes IN as a C array kr_embed_NAME with its size, ended by a NUL that the size does not count."""
import pathlib, sys

data = pathlib.Path(sys.argv[1]).read_bytes()
name = sys.argv[3]
rows = [", ".join(str(b) for b in data[i : i + 24]) for i in range(0, len(data), 24)]
text = f"/* Generated from {pathlib.Path(sys.argv[1]).name}. */\n#include <stddef.h>\n"
text += f"extern const unsigned char kr_embed_{name}[];\nextern const size_t kr_embed_{name}_bytes;\n"
text += f"const unsigned char kr_embed_{name}[] = {{\n" + ",\n".join(rows + ["0"]) + "};\n"
text += f"const size_t kr_embed_{name}_bytes = {len(data)};\n"
pathlib.Path(sys.argv[2]).write_text(text)
