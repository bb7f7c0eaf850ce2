#!/usr/bin/env python3
"""bundle_weights.py IN.safetensors OUT.c OUT.bin: writes IN's tensors, metadata and configuration as a C file, so that
the library needs no file reader (src/models/bundled.c). Values are rounded to 12 significant bits: the rest is
incompressible noise, three eighths of the file, and changes no score (docs/speed/2026-11-23-train-4.md)."""
import json, pathlib, struct, sys

path, rounded = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[3]).resolve()
data = path.read_bytes()
start = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:start])
metadata = header.pop("__metadata__")
config = json.loads(metadata["config"])
assert start % 4 == 0 and all(t["dtype"] == "F32" and t["data_offsets"][0] % 4 == 0 and 0 < len(t["shape"]) <= 8 for t in header.values())
assert all(isinstance(v, (bool, int, float)) for v in config.values()), "kr_bundled_values cannot hold lists"


words = struct.unpack(f"<{(len(data) - start) // 4}I", data[start:])
assert all(word & 0x7f800000 != 0x7f800000 for word in words), "a value is not finite"
rounded.write_bytes(data[:start] + struct.pack(f"<{len(words)}I", *[word + 0x800 & 0xfffff000 for word in words]))


def text(value):
    return json.dumps(str(value))


about = {"format": "safetensors", "model": metadata["model"], "config": config, "n_params": sum((t["data_offsets"][1] - t["data_offsets"][0]) // 4 for t in header.values()),
         "n_tensors": len(header), "tensors": [{"name": n, "dtype": "float32", "shape": t["shape"]} for n, t in header.items()],
         "metadata": {k: v for k, v in metadata.items() if k not in ("model", "config")}}
lines = []
for name in sorted(header):
    tensor = header[name]
    begin, end = tensor["data_offsets"]
    lines.append(f"  {{{text(name)}, KRAIT_F32, {len(tensor['shape'])}, {{{', '.join(map(str, tensor['shape']))}}}, bytes + {start + begin}, {end - begin}}},")
pairs = [f"  {{{text(k)}, {text(v)}}}," for k, v in metadata.items()]
values = [f"  {{{text(k)}, {float(v)!r}}}," for k, v in config.items()]
newline = "\n"
pathlib.Path(sys.argv[2]).write_text(f"""/* Made from {path.name} by tools/bundle_weights.py. */
#include "bundled.h"

__asm__(".pushsection .rodata\\n.balign 64\\n.globl kr_bundled_bytes\\n.hidden kr_bundled_bytes\\nkr_bundled_bytes:\\n.incbin \\"{rounded}\\"\\n.popsection\\n");
extern const unsigned char bytes[] __asm__("kr_bundled_bytes") __attribute__((visibility("hidden")));
const kr_weight kr_bundled_items[] = {{
{newline.join(lines)}
}};
const kr_metadata kr_bundled_metadata[] = {{
{newline.join(pairs)}
}};
const kr_bundled_value kr_bundled_values[] = {{
{newline.join(values)}
}};
const int64_t kr_bundled_n_items = {len(header)}, kr_bundled_n_metadata = {len(metadata)}, kr_bundled_n_values = {len(config)};
const char *const kr_bundled_model = {text(metadata["model"])};
const char *const kr_bundled_about = {json.dumps(json.dumps(about, separators=(",", ":")))};
""")
