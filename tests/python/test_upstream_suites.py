"""tools/upstream-suites on a made-up upstream: cases drawn, failures explained or not, files that do not import or crash."""

import json
import os
import subprocess
import sys

import pytest

_TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
_TOOL = os.path.join(_TREE, "tools", "upstream-suites")
_ON_CUDA = '''
import pytest, torch
@pytest.mark.parametrize("n", list(range(1000)))
@pytest.mark.parametrize("a,b", [(i, -i) for i in range(1000)])
def test_many(a, b, n):
    assert a == -b and torch.ones(n % 7, device="cuda").sum() == n % 7 and torch.zeros(2).cuda().to("cuda:0").device.type == "cpu"
@pytest.mark.parametrize("odd", [False, pytest.param(True, marks=pytest.mark.skip(reason="odd"))])
def test_odd(odd):
    assert not odd
'''
pytestmark = pytest.mark.skipif(not os.path.exists(_TOOL), reason="tests of a tool of the source tree")


def _run(folder, known, *options):
    (folder / "known.txt").write_text(known)
    done = subprocess.run([sys.executable, _TOOL, str(folder / "up"), "--known", str(folder / "known.txt"), "--seconds", "4", *options], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def _write(folder, name, text):
    path = folder / "up" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_draws_cases(tmp_path):
    """A million cases are never listed; those on "cuda" run on the CPU, a marked one is skipped."""
    _write(tmp_path, "one/tests/test_many.py", _ON_CUDA)
    code, text = _run(tmp_path, "")
    line = next(line for line in text.splitlines() if line.startswith("one/tests/test_many.py ")).split()
    assert code == 0 and int(line[1]) > 3 and line[1] == line[2] and line[3:6] == ["0", "0", "1"], text


def test_each_value_is_seen_first(tmp_path):
    """The first twelve cases of a function have all values of its parameters."""
    _write(tmp_path, "one/tests/test_values.py", "import pytest\n@pytest.mark.parametrize('a', list(range(12)))\n@pytest.mark.parametrize('b', list('pqrst'))\n"
           "@pytest.mark.parametrize('c,d', [(0, 1), (2, 3), (4, 5)])\ndef test_values(a, b, c, d):\n    pass\n")
    code, text = _run(tmp_path, "", "--records", str(tmp_path / "records"))
    cases = [json.loads(line)["case"] for line in open(tmp_path / "records")]
    seen = {value for case in cases[:12] for value in case[case.index("[") + 1:-1].split(",")}
    assert code == 0 and len(cases) == len(set(cases)) == 180 and len(seen) == 12 + 5 + 3 + 3, (seen, len(cases), text)


def test_failures_need_a_reason(tmp_path):
    _write(tmp_path, "one/tests/test_wrong.py", "def test_wrong():\n    assert 1 == 2\ndef test_right():\n    pass\n")
    code, text = _run(tmp_path, "# nothing\n")
    assert code == 1 and "unexplained: cpu one/tests/test_wrong.py::test_wrong: assert 1 == 2" in text and "1 unexplained" in text, text
    code, text = _run(tmp_path, "test_wrong.py::test_wrong: assert 1 == 2 => numbers differ\n")
    assert code == 0 and "1 x numbers differ" in text, text
    code, text = _run(tmp_path, "not run: one/tests/test_wrong => elsewhere\n")
    assert code == 0 and "not run: elsewhere" in text, text


def test_cases_beyond_the_memory_are_skipped(tmp_path):
    _write(tmp_path, "one/tests/test_large.py", "import torch\ndef test_large():\n    torch.empty(1 << 60, dtype=torch.uint8, device='cuda')\n")
    code, text = _run(tmp_path, "")
    assert code == 0 and "1 x skipped: Skipped: more than the machine's memory" in text, text


_SLOW = '''
import pytest, time
@pytest.mark.parametrize("n", list(range(1000)))
def test_slow(n):
    time.sleep(0.5)
@pytest.mark.parametrize("n", list(range(1000)))
def test_quick(n):
    time.sleep(0.02)
@pytest.mark.parametrize("n", list(range(1000)))
def test_quicker(n):
    pass
'''


def test_time_is_shared(tmp_path):
    """A function with expensive cases gets about its share of the time, not of the cases."""
    _write(tmp_path, "one/tests/test_times.py", _SLOW)
    code, text = _run(tmp_path, "", "--records", str(tmp_path / "records"))
    counts = {name: sum("test_%s[" % name in line for line in open(tmp_path / "records")) for name in ("slow", "quick", "quicker")}
    assert code == 0 and 1 <= counts["slow"] <= 6 and counts["quick"] >= 2 * counts["slow"], (counts, text)


def test_errors_are_not_printed(tmp_path):
    """In a copy, whose lines stay where they are."""
    _write(tmp_path, "one/tests/test_prints.py", "class Never:\n    def item(self):\n        raise ValueError\ndef test_prints():\n    if True:\n        print(\n            f\"{Never().item()}\")\n    print('said')\n    assert 0 == 1\n")
    code, text = _run(tmp_path, "")
    assert code == 1 and "assert 0 == 1 (test_prints.py:9)" in text, text


def test_crashes_and_imports_are_failures(tmp_path):
    _write(tmp_path, "one/tests/test_crash.py", "import os, signal\ndef test_crash():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    _write(tmp_path, "one/tests/test_import.py", "import no_such_package\ndef test_never():\n    pass\n")
    code, text = _run(tmp_path, "", "--jobs", "2")
    assert code == 1 and "test_crash: the process ended with -9" in text and "(import): ModuleNotFoundError: No module named 'no_such_package'" in text, text


def test_names(tmp_path):
    _write(tmp_path, "one/causal_conv1d/causal_conv1d_interface.py", "def causal_conv1d_fn(x, weight):\n    pass\ndef causal_conv1d_no(x):\n    pass\n")
    code, text = _run(tmp_path, "", "--names")
    assert code == 1 and "causal_conv1d.causal_conv1d_interface.causal_conv1d_no: absent" in text and "1 absent, 1 same; 1 without" in text, text
    assert _run(tmp_path, "names: causal_conv1d_no => made up\n", "--names")[0] == 0
