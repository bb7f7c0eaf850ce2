"""The wheel's build backend (PEP 517), standard library only: compiles libkrait with meson from this tree (or takes
the file named by KRAIT_LIBRARY), strips it and packs it with the public headers and the Python files. One wheel per
architecture and minimum glibc; independent of the Python and torch versions."""

import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOT = os.path.dirname(_HERE)
sys.path.insert(0, _HERE)
from krait import __version__  # noqa: E402
from krait._dropin import write_archive  # noqa: E402

_IS_GLIBC = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
_INFO = "krait-%s.dist-info" % __version__


def _project_value(name):
    with open(os.path.join(_HERE, "pyproject.toml"), encoding="utf-8") as file:
        return re.search(r'^%s = "(.*)"$' % re.escape(name), file.read(), re.M)[1]


def _metadata():
    return ("Metadata-Version: 2.1\nName: krait\nVersion: %s\nSummary: %s\nLicense: Apache-2.0\nRequires-Python: %s\n"
            "Requires-Dist: cffi>=1.15\n" % (__version__, _project_value("description"), _project_value("requires-python")))


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError("%s failed:\n%s" % (" ".join(command[:2]), done.stdout[-4000:]))
    return done.stdout


def _build_library(folder):
    """libkrait-ops.so, stripped: the given one, or one compiled in `folder`."""
    built, path = os.environ.get("KRAIT_LIBRARY"), os.path.join(folder, "libkrait-ops.so")
    if not built:
        build = os.path.join(folder, "build")
        said = _run("meson", "setup", build, _ROOT, "-Dtests=false")
        if "NO GPU tiers" in said:
            print("krait: clang 18 or later not found: this wheel will be CPU-only", file=sys.stderr)
        _run("meson", "compile", "-C", build, "src/krait:shared_library")
        built = os.path.join(build, "src", "libkrait-ops.so")
    _run("strip", "--strip-unneeded", "-R", ".eh_frame", "-o", path, built)  # unwinding tables, which nothing finds without their index (src/meson.build)
    return path


def _platform_tag(library):
    """manylinux_2_N, from the newest glibc symbol that the library requires."""
    if not _IS_GLIBC:
        return re.sub(r"[-.]", "_", sysconfig.get_platform())
    minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", b"\0" + library)]
    return "manylinux_2_%d_%s" % (max(minors + [17]), platform.machine())


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _package_files():
    files = []
    for folder, _, names in sorted(os.walk(os.path.join(_HERE, "krait"))):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                files.append((os.path.relpath(path, _HERE).replace(os.sep, "/"), _read(path)))
    for name in ("krait.h", "tensor.h", "ops.h", "plan.h", "enhance.h", "trainable.h"):
        files.append(("krait/include/krait/" + name, _read(os.path.join(_ROOT, "include", "krait", name))))
    return files


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        library = _read(_build_library(folder))
    tag = "py3-none-" + _platform_tag(library)
    wheel = "Wheel-Version: 1.0\nGenerator: krait_build\nRoot-Is-Purelib: false\nTag: %s\n" % tag
    files = _package_files() + [("krait/libkrait-ops.so", library), (_INFO + "/METADATA", _metadata().encode()),
                                (_INFO + "/WHEEL", wheel.encode()), (_INFO + "/LICENSE", _read(os.path.join(_ROOT, "LICENSE")))]
    name = "krait-%s-%s.whl" % (__version__, tag)
    write_archive(os.path.join(wheel_directory, name), files, _INFO)
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("no sdist: build the wheel from the repository (make wheel)")


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
