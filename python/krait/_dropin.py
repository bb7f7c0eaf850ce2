"""The drop-in packages as distributions: writes them as wheels, installs those through pip, says who shadows whom.

A wheel is made from the folder `dropin/` beside this file, with upstream's distribution name and version, so that pip and
importlib.metadata see the requirement as satisfied. Nothing is installed over an upstream copy that works."""

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile

from . import __version__

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dropin")
PACKAGES = {  # distribution: upstream version it stands for, what it imports as, what it needs
    "causal_conv1d": ("1.6.1", ("causal_conv1d", "causal_conv1d_cuda"), ("torch",)),
    "mamba_ssm": ("2.3.2.post1", ("mamba_ssm", "selective_scan_cuda"), ("torch", "causal_conv1d")),
    "flash_attn": ("2.8.3", ("flash_attn",), ("torch",)),
}
_DEFAULT = ("causal_conv1d", "mamba_ssm")
_MARK = "Drop-in for "


def _version(name):
    return "%s+krait%s" % (PACKAGES[name][0], __version__)


def _files(name):
    """[(path in the wheel, bytes)] of one package."""
    found = []
    for module in PACKAGES[name][1]:
        base = os.path.join(_FOLDER, module)
        paths = [base + ".py"] if os.path.isfile(base + ".py") else sorted(
            os.path.join(folder, file) for folder, _, files in os.walk(base) for file in files if file.endswith(".py"))
        for path in paths:
            with open(path, "rb") as file:
                found.append((os.path.relpath(path, _FOLDER).replace(os.sep, "/"), file.read()))
    return found


def _metadata(name):
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + _version(name),
             "Summary: %s%s on krait" % (_MARK, name), "License: Apache-2.0", "Requires-Python: >=3.9",
             "Requires-Dist: krait==" + __version__]
    return "\n".join(lines + ["Requires-Dist: " + need for need in PACKAGES[name][2]]) + "\n"


def _record_line(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d" % (path, digest, len(data))


def write_archive(path, files, info):
    """A wheel: files [(name, bytes)], then RECORD in the folder `info`."""
    record = [_record_line(name, data) for name, data in files] + [info + "/RECORD,,"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files + [(info + "/RECORD", ("\n".join(record) + "\n").encode())]:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def write_wheel(name, folder):
    info = "%s-%s.dist-info" % (name, _version(name))
    tags = "Wheel-Version: 1.0\nGenerator: krait %s\nRoot-Is-Purelib: true\nTag: py3-none-any\n" % __version__
    files = _files(name) + [(info + "/METADATA", _metadata(name).encode()), (info + "/WHEEL", tags.encode())]
    path = os.path.join(folder, "%s-%s-py3-none-any.whl" % (name, _version(name)))
    write_archive(path, files, info)
    return path


# ---- who is there already ---------------------------------------------------------------------------------------------
def _copies(name):
    """Every folder on the path that has the package, in import order."""
    found = []
    for entry in sys.path:
        path = os.path.join(os.path.abspath(entry or "."), name)
        if os.path.isfile(os.path.join(path, "__init__.py")) and path not in found:
            found.append(path)
    return found


def _is_dropin(path):
    try:
        with open(os.path.join(path, "__init__.py"), encoding="utf-8", errors="replace") as file:
            head = file.read(200)
    except OSError:
        return False
    return _MARK in head and "on krait" in head


def _import_error(name):
    """None if a fresh interpreter imports the package, else the last line of what it said."""
    modules = [m for m in PACKAGES[name][1] if importlib.util.find_spec(m)]
    done = subprocess.run([sys.executable, "-c", "import torch, " + ", ".join(modules or [name])], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["exit status %d" % done.returncode])[-1]


def explain(name):
    """One line: which copy Python imports, whose it is, what it hides."""
    copies = _copies(name)
    if not copies:
        return "not installed (python -m krait dropin on)"
    texts = ["%s (%s)" % (path, "krait's drop-in" if _is_dropin(path) else "not krait's") for path in copies]
    return texts[0] + "".join(", which hides " + text for text in texts[1:])


def _refusal(name):
    """Why the drop-in must not be installed unasked, else None."""
    foreign = [path for path in _copies(name) if not _is_dropin(path)]
    if not foreign:
        return None
    error = _import_error(name)
    if error is None:
        return "%s works and is not krait's; --force replaces it" % foreign[0]
    print("krait: %s is broken here and will be replaced (%s)" % (foreign[0], error))
    return None


# ---- commands ---------------------------------------------------------------------------------------------------------
def _pip(*arguments):
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]).returncode


def _install(names, force):
    refusals = [] if force else [text for text in map(_refusal, names) if text]
    for text in refusals:
        print("krait: " + text, file=sys.stderr)
    if refusals:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        wheels = [write_wheel(name, folder) for name in names]
        return _pip("install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", *wheels)


def _remove(names):
    names = [name for name in names if any(map(_is_dropin, _copies(name)))]
    if not names:
        print("krait: no drop-in is installed")
        return 0
    return _pip("uninstall", "--yes", "--quiet", *names)


def run(options):
    unknown = [name for name in options.packages if name not in PACKAGES]
    if unknown:
        print("krait: no drop-in for %s; there are %s" % (", ".join(unknown), ", ".join(PACKAGES)), file=sys.stderr)
        return 2
    names = options.packages or _DEFAULT
    if options.action == "on":
        return _install(names, options.force)
    if options.action == "off":
        return _remove(names)
    for name in names:
        print(write_wheel(name, options.folder) if options.action == "wheel" else "%-14s %s" % (name, explain(name)))
    return 0
