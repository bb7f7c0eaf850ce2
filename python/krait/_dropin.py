"""The drop-in packages as distributions: writes wheels, installs them with pip, reports which copy shadows which.

Wheels are made from the folder `dropin/` beside this file, with upstream's distribution name and version, so that pip
and importlib.metadata see the requirement as satisfied. The extension modules below autograd are a separate
distribution, the only one that forks of the packages need. A working upstream copy is never replaced unasked."""

import base64
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

from . import __version__

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dropin")
KERNELS = "krait_kernels"
PACKAGES = {  # distribution: upstream version, import names, requirements
    KERNELS: (__version__, ("causal_conv1d_cuda", "selective_scan_cuda", "selective_scan_cuda_oflex", "selective_scan_cuda_core", "selective_scan_cuda_ndstate",
               "flash_attn_2_cuda"),
              ("torch",)),
    "causal_conv1d": ("1.7.0", ("causal_conv1d",), ("torch", KERNELS)),
    "mamba_ssm": ("2.3.2.post1", ("mamba_ssm",), ("torch", "causal_conv1d", KERNELS)),
    "flash_attn": ("2.8.3.post2", ("flash_attn",), ("torch", KERNELS)),
    "flash_attn_3": ("3.0.0", ("flash_attn_3", "flash_attn_interface"), ("torch",)),
    "fla_core": ("0.6.0", ("fla",), ("torch",)),
}
ONLY_BY_NAME = ("flash_attn_3",)  # clients prefer it where they find it, and not all know its results: Wan takes the first of a tuple
MODULES = [module for _, modules, _ in PACKAGES.values() for module in modules]
_MARK = "Drop-in for "
_SUFFIXES = importlib.machinery.EXTENSION_SUFFIXES + importlib.machinery.SOURCE_SUFFIXES + importlib.machinery.BYTECODE_SUFFIXES


def _version(name):
    return "%s+krait%s" % (PACKAGES[name][0], __version__)


def _files(name, without=()):
    """[(path in the wheel, bytes)] of one package, except for some of its modules."""
    found = []
    for module in [module for module in PACKAGES[name][1] if module not in without]:
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


def write_archive(path, files, info, programs=()):
    """A wheel: files [(name, bytes)], then RECORD in the folder `info`. programs: names of files that can be run."""
    record = [_record_line(name, data) for name, data in files] + [info + "/RECORD,,"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files + [(info + "/RECORD", ("\n".join(record) + "\n").encode())]:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if name.endswith(".so") or name in programs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)


def write_wheel(name, folder, without=()):
    info = "%s-%s.dist-info" % (name, _version(name))
    tags = "Wheel-Version: 1.0\nGenerator: krait %s\nRoot-Is-Purelib: true\nTag: py3-none-any\n" % __version__
    files = _files(name, without) + [(info + "/METADATA", _metadata(name).encode()), (info + "/WHEEL", tags.encode())]
    path = os.path.join(folder, "%s-%s-py3-none-any.whl" % (name, _version(name)))
    write_archive(path, files, info)
    return path


# ---- installed copies -------------------------------------------------------------------------------------------------
def _copies(module):
    """Every copy on sys.path, in import order: package folders, module files (within a folder compiled ones first)."""
    found = []
    for entry in sys.path:
        base = os.path.join(os.path.abspath(entry or "."), module)
        candidates = [base] if os.path.isfile(os.path.join(base, "__init__.py")) else []
        for path in candidates + [base + suffix for suffix in _SUFFIXES if os.path.isfile(base + suffix)]:
            if path not in found:
                found.append(path)
    return found


def _is_dropin(path):
    try:
        with open(os.path.join(path, "__init__.py") if os.path.isdir(path) else path, encoding="utf-8", errors="replace") as file:
            head = file.read(200)
    except OSError:
        return False
    return _MARK in head and "on krait" in head


def _import_error(module):
    """None if a fresh interpreter imports it, else the last line of its error."""
    done = subprocess.run([sys.executable, "-c", "import torch, " + module], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["exit status %d" % done.returncode])[-1]


def explain(module):
    """One line: which copy Python imports, whether it is krait's, what it hides."""
    copies = _copies(module)
    if not copies:
        return "not installed (python -m krait dropin on%s)" % "".join(" " + name for name in ONLY_BY_NAME if module in PACKAGES[name][1])
    texts = ["%s (%s)" % (path, "krait's drop-in" if _is_dropin(path) else "not krait's") for path in copies]
    return texts[0] + "".join(", which hides " + text for text in texts[1:])


def _refusals(name):
    """Why the drop-in must not be installed without --force: {module: one sentence}."""
    found = {}
    for module in PACKAGES[name][1]:
        foreign = [path for path in _copies(module) if not _is_dropin(path)]
        error = _import_error(module) if foreign else None
        if foreign and error is None:
            found[module] = "%s works and is not krait's; --force replaces it" % foreign[0]
        elif foreign:
            print("krait: %s does not import and will be replaced (%s)" % (foreign[0], error))
    return found


def _with_needs(names):
    """The names, and the drop-ins they import that are not installed in any form."""
    needs = [need for name in names for need in PACKAGES[name][2] if need in PACKAGES and not any(_copies(module) for module in PACKAGES[need][1])]
    return [name for name in PACKAGES if name in names or name in needs]


# ---- commands ---------------------------------------------------------------------------------------------------------
def _pip(*arguments):
    if importlib.util.find_spec("pip") is None:
        print("krait: this Python has no pip; write wheels (python -m krait dropin wheel FOLDER) and install them (uv pip install FOLDER/*.whl)", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]).returncode


def _torch_text():
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; the packages need it (pip install torch, 1.13 or later)"
    try:
        return "torch %s is installed" % importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is installed"


def _tell_installed(names, without=()):
    """Prints what was installed and what hides it -> 0, or 1 if Python imports another copy."""
    importlib.invalidate_caches()
    hidden = 0
    for name in names:
        for module in [module for module in PACKAGES[name][1] if module not in without]:
            copies = _copies(module)
            print("krait: %s (%s %s): %s" % (module, name, _version(name), copies[0] if copies else "installed outside this Python's sys.path"))
            if copies and not _is_dropin(copies[0]):
                print("krait: that copy of %s is not krait's and hides the drop-in: remove it" % module, file=sys.stderr)
                hidden = 1
    print("krait: %s" % _torch_text())
    return hidden


def _install(names, force, were_named=True):
    """Without force no module that works is replaced: of packages that were named nothing is installed then, of all the other modules are."""
    refusals = {} if force else {module: text for name in names for module, text in _refusals(name).items()}
    for text in refusals.values():
        print("krait: " + text, file=sys.stderr)
    names = [name for name in names if not all(module in refusals for module in PACKAGES[name][1])]
    if refusals and (were_named or not names):
        return 1
    with tempfile.TemporaryDirectory() as folder:
        wheels = [write_wheel(name, folder, refusals) for name in names]
        code = _pip("install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", *wheels)
    return code or _tell_installed(names, refusals)


def _sweep(folder):
    """Removes the .pyc files left in a folder: an empty package that still imports looks installed to other code."""
    left = [os.path.join(path, file) for path, _, files in os.walk(folder) for file in files]
    foreign = [path for path in left if not path.endswith(".pyc")]
    if foreign:
        print("krait: %s was kept: it contains %s, which krait did not install" % (folder, foreign[0]), file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _remove(names):
    names = [name for name in names if any(_is_dropin(path) for module in PACKAGES[name][1] for path in _copies(module))]
    if not names:
        print("krait: no drop-in is installed")
        return 0
    folders = [path for name in names for module in PACKAGES[name][1] for path in _copies(module) if os.path.isdir(path) and _is_dropin(path)]
    code = _pip("uninstall", "--yes", "--quiet", *names)
    return code or max([_sweep(folder) for folder in folders if os.path.isdir(folder)], default=0)


def run(options):
    options.packages = [name.replace("-", "_").lower() for name in options.packages]  # pip's spelling, too
    unknown = [name for name in options.packages if name not in PACKAGES]
    if unknown:
        print("krait: no drop-in for %s; choose from %s" % (", ".join(unknown), ", ".join(PACKAGES)), file=sys.stderr)
        return 2
    only_kernels = getattr(options, "kernels_only", False)
    if only_kernels and options.packages:
        print("krait: --kernels-only takes no packages; remove %s" % ", ".join(options.packages), file=sys.stderr)
        return 2
    names = [KERNELS] if only_kernels else options.packages or [name for name in PACKAGES if options.action in ("off", "which") or name not in ONLY_BY_NAME]
    if options.action == "on":
        return _install(_with_needs(names), options.force, only_kernels or bool(options.packages))
    if options.action == "off":
        return _remove(names)
    if options.action == "wheel":
        try:
            os.makedirs(options.folder, exist_ok=True)
            for name in names:
                print(write_wheel(name, options.folder))
        except OSError as error:
            print("krait: cannot write wheels into %s: %s" % (options.folder, error.strerror), file=sys.stderr)
            return 1
    else:
        for module in [module for name in names for module in PACKAGES[name][1]]:
            print("%-28s %s" % (module, explain(module)))
    return 0
