"""Shared by all CLI tests: run, compare, report. Usage of a test: python3 tests/cli/NAME.py KRAIT."""
import os
import subprocess
import sys

KRAIT = os.path.abspath(sys.argv[1])  # tests also run it in other folders
FEW = int(os.environ.get("KR_CHECK_PERCENT", "100")) < 100  # under a sanitizer: skips repeats of the same C code
SEED = int(os.environ.get("KR_CHECK_SEED", 1))
failures = 0


def krait(*args, stdin=None, **kw):
    return subprocess.run([KRAIT, *map(str, args)], input=stdin, capture_output=True, timeout=240, **kw)


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print("FAIL:", what)


def check_error(status, words, *args, **kw):
    """The call fails with this exit status, nothing on stdout and one line on stderr that contains the words."""
    done = krait(*args, **kw)
    text = done.stderr.decode(errors="replace")
    check(done.returncode == status, f"{args}: exit {done.returncode}, not {status}: {text}")
    check(done.stdout == b"", f"{args}: wrote to standard output")
    check(text.count("\n") == 1 and text.endswith("\n"), f"{args}: not one line: {text!r}")
    check(words in text, f"{args}: {text!r} lacks {words!r}")


def finish():
    print(f"{failures} failures")
    sys.exit(1 if failures else 0)
