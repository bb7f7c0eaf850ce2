#!/usr/bin/env python3
"""embedded.py KRAIT PTX_DIR: the device code inside the program is what the compiler wrote, but for comments and blanks."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def tokens(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return re.sub(r" ?, ?", ",", " ".join(text.split()))


krait, built = sys.argv[1], pathlib.Path(sys.argv[2])
with tempfile.TemporaryDirectory() as place:
    folder = place + "/made"
    subprocess.run([krait, "info", "--dump-ptx", folder], check=True, stdout=subprocess.PIPE)
    first = min(pathlib.Path(folder).iterdir())
    whole, names = first.read_bytes(), sorted(os.listdir(folder))
    first.write_text("mine")
    again = subprocess.run([krait, "info", "--dump-ptx", folder], capture_output=True, text=True)
    assert again.returncode == 1 and again.stderr.count("\n") == 1 and "exists; -f replaces it" in again.stderr, again
    assert first.read_text() == "mine" and sorted(os.listdir(folder)) == names
    subprocess.run([krait, "info", "--dump-ptx", folder, "-f"], check=True, stdout=subprocess.PIPE)
    assert first.read_bytes() == whole and sorted(os.listdir(folder)) == names
    dumped = sorted(pathlib.Path(folder).iterdir())
    wrong = [p.name for p in dumped if tokens(p) != tokens(built / p.name)]
for name in wrong:
    print(f"{name}: the program's text differs from the compiler's")
print(f"{len(dumped)} texts, {len(wrong)} wrong")
sys.exit(1 if wrong or not dumped else 0)
