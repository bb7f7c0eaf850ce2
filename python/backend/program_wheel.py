"""The program as a wheel beside krait's: `python3 program_wheel.py TARBALL FOLDER` packs what tools/tarball made (the
program with every library that it needs) as the package krait_program, whose program `python -m krait VERB` runs. It
needs no other library, so it serves every Python and every glibc of its architecture."""

import os
import sys
import tarfile

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, _HERE)
from krait import __version__  # noqa: E402
from krait._dropin import write_archive  # noqa: E402

_INFO = "krait_program-%s.dist-info" % __version__
_METADATA = """Metadata-Version: 2.1
Name: krait-program
Version: %s
Summary: The program krait, with every library that it needs, for `python -m krait`
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

The verbs of `krait` that are not Python (generate, live, train, restore, doctor ...; `python -m krait help`). The licences
of the bundled libraries are in krait_program/share/doc.
""" % __version__


def _members(tarball):
    """[(path in the package, bytes)], and the paths that can be run."""
    files, programs = [], set()
    with tarfile.open(tarball) as archive:
        for entry in archive:
            if not entry.isfile():
                continue
            name = "krait_program/" + entry.name.split("/", 1)[1]
            files.append((name, archive.extractfile(entry).read()))
            if entry.mode & 0o100:
                programs.add(name)
    return files, programs


def build(tarball, folder):
    machine = os.path.basename(tarball).split("-linux-")[1].split(".")[0]
    tag = "py3-none-manylinux_2_17_" + machine
    files, programs = _members(tarball)
    files += [("krait_program/__init__.py", b'"""The program krait: bin/krait in this folder."""\n'), (_INFO + "/METADATA", _METADATA.encode()),
              (_INFO + "/WHEEL", ("Wheel-Version: 1.0\nGenerator: program_wheel\nRoot-Is-Purelib: false\nTag: %s\n" % tag).encode())]
    path = os.path.join(folder, "krait_program-%s-%s.whl" % (__version__, tag))
    write_archive(path, files, _INFO, programs)
    return path


if __name__ == "__main__":
    print(build(sys.argv[1], sys.argv[2]))
