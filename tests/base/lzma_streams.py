#!/usr/bin/env python3
"""lzma_streams.py OUT.h: a C header with several kinds of data and their liblzma LZMA streams, for
tests/base/lzma.c."""
import lzma
import pathlib
import random
import sys

FILTERS = [{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 20, "lc": 3, "lp": 0, "pb": 0}]
r = random.Random(7)
words = [bytes(r.randrange(97, 123) for _ in range(r.randrange(1, 9))) for _ in range(40)]
noise = bytes(r.randrange(256) for _ in range(3000))
DATA = {"one byte": b"x", "zeros": bytes(70000), "noise": noise, "words": b" ".join(r.choice(words) for _ in range(9000)),
        "far apart": noise + bytes(r.randrange(2) for _ in range(60000)) + noise + noise[7:2000] * 3, "short periods": b"".join(bytes([k]) * (k % 40) + b"ab" * k for k in range(256))}
rows = []
with open(sys.argv[1], "w", encoding="utf-8") as out:
    out.write("/* Made by tests/base/lzma_streams.py. */\n")
    for i, (name, data) in enumerate(DATA.items()):
        stream = lzma.compress(data, format=lzma.FORMAT_RAW, filters=FILTERS)
        for what, held in (("data", data), ("stream", stream)):
            out.write(f"static const uint8_t {what}_{i}[] = {{{','.join(map(str, held))}}};\n")
        rows.append(f'{{"{name}", data_{i}, sizeof data_{i}, stream_{i}, sizeof stream_{i}}}')
    out.write("static const struct { const char *name; const uint8_t *data; size_t n; const uint8_t *stream; size_t n_stream; } cases[] = {\n%s};\n" % ",\n".join(rows))
