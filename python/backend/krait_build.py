"""The wheel's build backend (PEP 517), standard library only: compiles libkrait with meson from this tree (or takes
the file named by KRAIT_LIBRARY), strips it and packs it with the public headers and the Python files. One wheel per
architecture and minimum glibc; independent of the Python and torch versions."""

import glob
import os
import platform
import re
import shutil
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


def _project():
    with open(os.path.join(_HERE, "pyproject.toml"), encoding="utf-8") as file:
        return file.read()


def _project_value(name):
    return re.search(r'^%s = "(.*)"$' % re.escape(name), _project(), re.M)[1]


def _project_list(name):
    """A list of strings; no Python before 3.11 has a reader of TOML."""
    return re.findall(r'"([^"]*)"', re.search(r"^%s = \[(.*?)\]$" % re.escape(name), _project(), re.M | re.S)[1])


def _metadata():
    lines = ["Metadata-Version: 2.1", "Name: krait", "Version: " + __version__, "Summary: " + _project_value("description"), "License: Apache-2.0",
             "Requires-Python: " + _project_value("requires-python"), "Keywords: " + ",".join(_project_list("keywords"))]
    lines += ["Requires-Dist: " + text for text in _project_list("dependencies")]
    lines += ["Classifier: " + text for text in _project_list("classifiers")]
    readme = _read(os.path.join(_HERE, _project_value("readme"))).decode()
    return "\n".join(lines) + "\nDescription-Content-Type: text/markdown\n\n" + readme


def _entry_points():
    scripts = re.search(r"^\[project\.scripts\]\n(.*?)(?:\n\[|\Z)", _project(), re.M | re.S)[1]
    return "[console_scripts]\n" + re.sub(r'"', "", scripts).strip() + "\n"


def get_requires_for_build_wheel(config_settings=None):
    """The build's tools that this machine lacks; none if the library is given."""
    return [] if os.environ.get("KRAIT_LIBRARY") else [tool for tool in ("meson", "ninja") if shutil.which(tool) is None]


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError("%s failed:\n%s" % (" ".join(command[:2]), done.stdout[-4000:]))
    return done.stdout


def _build_library(folder):
    """libkrait-ops.so, the given one or one compiled in `folder`: its stripped copy there, and its machine code."""
    built, path = os.environ.get("KRAIT_LIBRARY"), os.path.join(folder, "libkrait-ops.so")
    if not built:
        build = os.path.join(folder, "build")
        said = _run("meson", "setup", build, _ROOT, "-Dtests=false")
        if "NO GPU tiers" in said:
            print("krait: clang 18 or later not found: this wheel will be CPU-only", file=sys.stderr)
        _run("meson", "compile", "-C", build, "src/krait:shared_library")
        built = os.path.join(build, "src", "libkrait-ops.so")
    _run("strip", "--strip-unneeded", "-R", ".eh_frame", "-o", path, built)  # unwinding tables, which nothing finds without their index (src/meson.build)
    return path, _machine_code(os.path.join(folder, "krait-cubins"), os.path.dirname(os.path.realpath(built)))


def _machine_code(folder, built):
    """Of kernels that first calls wait for longest, in files beside the library (tools/cubins); none without a ptxas that takes their texts."""
    texts = next((path for path in (os.path.join(built, "cuda"), os.path.join(_ROOT, "ptx")) if glob.glob(os.path.join(path, "*.ptx"))), None)
    if not texts:
        return []
    if not shutil.which("ptxas"):
        print("krait: ptxas not found: this wheel's first calls on a GPU will wait until all their kernels are translated", file=sys.stderr)
        return []
    try:
        _run(sys.executable, os.path.join(_ROOT, "tools", "cubins"), texts, folder, "--only", os.path.join(_ROOT, "tools", "first-kernels"), "sm_90")
    except RuntimeError as error:  # a ptxas before CUDA 12 does not know the texts' version
        print("krait: this wheel's first calls on a GPU will wait until all their kernels are translated: %s" % error, file=sys.stderr)
        return []
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


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
    for name in ("krait.h", "tensor.h", "ops.h", "train_ops.h", "plan.h", "enhance.h", "restore.h", "shared_lm.h", "trainable.h"):
        files.append(("krait/include/krait/" + name, _read(os.path.join(_ROOT, "include", "krait", name))))
    return files


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        path, code = _build_library(folder)
        library = _read(path)
        files = [("krait/krait-cubins/" + os.path.basename(name), _read(name)) for name in code]
    tag = "py3-none-" + _platform_tag(library)
    wheel = "Wheel-Version: 1.0\nGenerator: krait_build\nRoot-Is-Purelib: false\nTag: %s\n" % tag
    files += _package_files() + [("krait/libkrait-ops.so", library), (_INFO + "/METADATA", _metadata().encode()), (_INFO + "/entry_points.txt", _entry_points().encode()),
                                (_INFO + "/WHEEL", wheel.encode()), (_INFO + "/LICENSE", _read(os.path.join(_ROOT, "LICENSE")))]
    name = "krait-%s-%s.whl" % (__version__, tag)
    write_archive(os.path.join(wheel_directory, name), files, _INFO)
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("no sdist: build the wheel from the repository (make wheel)")


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
