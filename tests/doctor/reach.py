"""reach.py PROGRAM: with an error's text, a library without code for the GPU is a problem only if the text's imports
lead to it."""
from fake import *

NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def frames(*paths, code=""):
    return "Traceback (most recent call last):\n" + "".join(f'  File "/env/lib/python3.11/site-packages/{p}", line 3, in f\n    {code or "x()"}\n' for p in paths) + NO_IMAGE


def tree(folder, sources=()):
    """Two packages without code for 8.9: mamba-ssm with its module, and other, imported only by sources, if any."""
    t = Tree(folder)
    t.extension(name="mamba-ssm", version="2.2.2", module="selective_scan_cuda", images=(90,))
    t.extension(name="other", version="1.0", module="other/_C", images=(90,))
    for path, text in [("mamba_ssm/__init__.py", "import torch\nimport selective_scan_cuda\n"), *sources]:
        file = t.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return t


def blamed(doctor, t, log, *args):
    a = doctor(t.site, "--root", t.root, "--gpu", "8.9", *args, log=log)
    return sorted("other" if "/other/" in f["file"] else "mamba" for f in a["findings"] if f["id"] == "K01" and f["file"]), a


def unreached_files_are_set_aside(doctor, folder):
    t = tree(folder)
    log = frames("mamba_ssm/ops/selective_scan_interface.py")
    assert blamed(doctor, t, log)[0] == ["mamba"]
    names, a = blamed(doctor, t, log, "--all")
    assert names == ["mamba", "other"]
    other = next(f for f in a["findings"] if f["id"] == "K01" and f["file"] and "/other/" in f["file"])
    assert other["severity"] == "info" and any("no import in the log" in e for e in other["evidence"])
    text = " ".join(doctor.text(t.site, "--root", t.root, "--gpu", "8.9", log=log).split())
    assert "1 finding about files that no import in the log reaches: --all shows it." in text and "1 problem," in text, text


def reached_files_stay(doctor, folder):
    log = frames("mamba_ssm/ops/selective_scan_interface.py")
    for i, sources in enumerate(([("mamba_ssm/modules/block.py", "def f():\n    from other import _C\n")], [("mamba_ssm/a.py", "import os, middle.b as c\n"), ("middle/b.py", "import other._C\n")],
                                 [("mamba_ssm/a.py", "import single\n"), ("single.py", "try:\n  import numpy, other\nexcept: pass\n")])):
        assert blamed(doctor, tree(folder / str(i), sources), log)[0] == ["mamba", "other"], sources
    assert blamed(doctor, tree(folder / "line"), frames("mamba_ssm/x.py", code="from other._C import y"))[0] == ["mamba", "other"]
    assert blamed(doctor, tree(folder / "frame"), frames("mamba_ssm/x.py", "other/y.py"))[0] == ["mamba", "other"]
    assert blamed(doctor, tree(folder / "only"), frames("other/y.py"))[0] == ["other"]


def a_text_without_imports_sets_nothing_aside(doctor, folder):
    t = tree(folder)
    for log in (NO_IMAGE, frames("torch/functional.py"), 'Traceback:\n  File "/srv/app/run.py", line 1, in f\n' + NO_IMAGE):
        assert blamed(doctor, t, log)[0] == ["mamba", "other"], log
    assert len([f for f in doctor(t.site, "--root", t.root, "--gpu", "8.9")["findings"] if f["id"] == "K01"]) == 2  # and none without a text


def libraries_of_reached_files_stay(doctor, folder):
    t = tree(folder)
    (t.site / "other.libs").mkdir()
    (t.site / "other.libs/libkernels.so").write_bytes(elf(soname="libkernels.so", fatbin=container(90)))
    (t.site / f"selective_scan_cuda.{PY}.so").write_bytes(elf(fatbin=container(90), needed=["libc10.so", "libkernels.so"], rpath="$ORIGIN/other.libs"))
    found = [f for f in doctor(t.site, "--root", t.root, "--gpu", "8.9", log=frames("mamba_ssm/x.py"))["findings"] if f["id"] == "K01"]
    assert any("libkernels" in f["file"] for f in found) and not any("/other/" in f["file"] for f in found), found


def the_text_counts_if_only_unreached_files_fail(doctor, folder):
    t = Tree(folder)
    t.extension(name="other", version="1.0", module="other/_C", images=(90,))
    a = doctor(t.site, "--root", t.root, "--gpu", "8.9", log=frames("quiet/x.py"))
    assert a.find("K01")["file"] is None and a.find("K01")["confidence"] == "M"


def loops_and_strange_sources_terminate(doctor, folder):
    t = tree(folder, [("mamba_ssm/a.py", "import b, mamba_ssm\nimport ,,,\nfrom\nimport\nfrom . import z\n" + "import " + "q," * 5000 + "\n"), ("b/__init__.py", "import mamba_ssm\nfrom b import b\n")])
    (t.site / "mamba_ssm/link").symlink_to(t.site / "mamba_ssm")
    assert blamed(doctor, t, frames("mamba_ssm/x.py"))[0] == ["mamba"]


run_tests([f for f in list(globals().values()) if callable(f) and getattr(f, "__module__", "") == "__main__" and f.__name__ not in ("frames", "tree", "blamed")])
