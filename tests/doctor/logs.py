"""logs.py PROGRAM: pasted errors: the first line states the problem, the second is a command, there are no
placeholders, several findings of one text agree, and a crash never ends in success."""
from fake import *
from benign import LOGS
from fresh import COMMON, FRESH, LAST, LATER, PLAIN
from reports import REPORTS
from texts import TEXTS

PLACEHOLDER = re.compile(r"another version|another release|\ba library\b:|PACKAGE|X\.Y|\bXY\b|CUDA 0\.0|SITE-PACKAGES|THIS-TEXT|LEFT-OVER|FAMILY|[{}]\w+[}]", re.M)
# Real reports with the required answers, kept beside the tree.
SHARED = ROOT.parent / "shared/doctor-logs"


def first_screen(doctor, folder, text):
    done = doctor.run("--root", folder, log=text)
    out = done.stdout.decode()
    assert done.returncode == 1, (done.returncode, out)
    assert not PLACEHOLDER.search(out) and "0 problems" not in out.splitlines()[-1], out
    assert "\x1b" not in out
    return "\n".join(out.splitlines()[:2])


def every_text_is_answered_on_the_first_screen(doctor, folder):
    wrong = []
    for rule, words, text in TEXTS[SEED % SHARE::SHARE]:
        if rule is None:
            continue
        found = [f["id"] for f in doctor("--root", folder, log=text)["findings"] if f["severity"] != "info"]
        top = first_screen(doctor, folder, text)
        if found[:1] != [rule] or not re.search(words, top, re.I):
            wrong.append((rule, found, words, top))
    assert not wrong, "\n".join(map(str, wrong))


def releases():
    known, section = {}, ""
    for line in TABLES.read_text().splitlines():
        section = line if line.startswith("[") else section
        if section == "[release]" and "|" in line and line[0] != "#":
            known.setdefault(line.split("|")[0], set()).update(line.split("|")[1].split())
    return known


def complaint(command, text, known):
    """Why a command must not be printed: judged by another reader than the doctor's own."""
    for part in re.split(r" && |; ", command):
        words = part.split("pip install", 1)[1].split() if "pip install" in part else ["x"]
        if not [w for i, w in enumerate(words) if not w.startswith("-") and (i == 0 or words[i - 1] not in ("--index-url", "--extra-index-url", "--no-binary"))] and "-e" not in words:
            return "installs nothing"
        for name, version in re.findall(r"([\w-]+)(?:\[[\w,]+\])?==([\w.]+)", part):
            if name in known and version.rstrip(".*") not in known[name] and not version.endswith("*"):
                return f"{name} {version} was never released"
    bare = set(re.findall(r"\$(\w+)", re.sub(r"'[^']*'", "", command))) - {"PATH", "HOME", "ID", "VERSION_ID", "env"}
    if bare:
        return f"{bare} may not be set"
    if "apt install cuda-toolkit-" in command and "cuda-keyring" not in command and not re.search("Jetson|L4T|tegra", text):
        return "apt does not know that package"
    windows = re.search(r"[CD]:\\", text) and "/mnt/c" not in text
    return "not of Windows" if windows and re.search(r"\bsudo\b|\bexport\b|\bunset\b|python3", command) else None


def commands_run_where_the_log_comes_from(doctor, folder):
    known, wrong, n = releases(), [], 0
    texts = [t for r, _, t in TEXTS if r] + [r[4] for r in REPORTS + FRESH + LATER + LAST + COMMON + PLAIN] + ([p.read_text() for p in sorted(SHARED.glob("*.txt"))] if SHARED.is_dir() else [])
    for text in texts[::10 if FEW else 1]:
        top = doctor.run("--root", folder, log=text).stdout.decode().splitlines()
        if len(top[0]) > 120 or re.search(r"_Z[A-Z0-9]", top[0]):
            wrong.append((len(top[0]), top[0]))
        fixes = [line.split("fix", 1)[1].strip() for line in top if re.match(r"    fix +\S", line)]
        if len(fixes) - fixes.count("as above") != len(set(fixes) - {"as above"}):
            wrong.append(("the same fix twice", top))
        for finding in doctor("--root", folder, log=text)["findings"]:
            for fix in finding["fix"]:
                if re.match(r"(pip|sudo|export|set|\\$env|winget|unset|cd|\\.|[A-Z_]+=)", fix) and " " in fix:
                    n += 1
                    why = complaint(fix, text, known)
                    if why:
                        wrong.append((why, fix))
    print(f"{n} commands of {len(texts)} logs")
    assert not wrong and len(known) > 20, "\n".join(map(str, wrong))


def builds_name_their_release(doctor, folder):
    """Commands that build a package from source always name a release, whether the text does or not."""
    section, packages, bare = "", set(), set()
    for line in TABLES.read_text().splitlines():
        section = line if line.startswith("[") else section
        if section == "[package]" and "|pypi" in line:
            packages.add(line.split("|")[0])
    assert len(packages) > 15, packages
    for _, _, text in TEXTS[::10 if FEW else 1]:
        for args in ((), ("--gpu", "12.0")):
            out = doctor.run("--root", folder, "--json", *args, log=text).stdout.decode()
            for command in re.findall(r"pip install [^\"]*", out):
                words = [w for w in re.sub(r"--no-binary \S+|xformers torch==", "", command).split() if w in packages]
                bare.update((w, command) for w in words)
    assert not bare, bare


def shared_logs_are_answered_as_their_table_says(doctor, folder):
    if not SHARED.is_dir():
        print("shared logs: skipped: there is no folder of them beside this tree")
        return
    wrong = []
    for line in (SHARED / "expected.tsv").read_text().splitlines():
        name, cause, words = line.split("\t")
        top = first_screen(doctor, folder, (SHARED / name).read_text())
        if not re.search(words, top, re.I):
            wrong.append((name, cause, top))
    assert not wrong, "\n".join(map(str, wrong))


def an_unknown_crash_is_not_a_success(doctor, folder):
    done = doctor.run("--root", folder, log="Traceback (most recent call last):\nValueError: the two shapes differ\n")
    out = " ".join(done.stdout.decode().split())
    assert done.returncode == 1 and "it was searched for" in out and "collect_env" in out and "the two shapes differ" in out, out
    assert doctor.run("--root", folder, log="hello\n").returncode == 0


def runs_that_worked_have_no_error(doctor, folder):
    wrong = []
    for name, text in list(LOGS.items())[SEED % SHARE::SHARE]:
        a = doctor("--root", folder, log=text)
        if a["exit"] != 0 or any(f["confidence"] == "C" or f["severity"] == "error" for f in a["findings"]):
            wrong.append((name, a["exit"], [(f["id"], f["confidence"], f["severity"], f["explain"]) for f in a["findings"]]))
    assert len(LOGS) >= 40 and not wrong, "\n".join(map(str, wrong))


def findings_of_one_text_agree(doctor, folder):
    """Consequences are folded under their cause."""
    killed = "/usr/local/cuda/bin/nvcc -c x.cu\nKilled\nninja: build stopped: subcommand failed.\nERROR: Failed building wheel for flash-attn\n"
    assert doctor("--root", folder, log=killed).ids() == ["B13"]
    old = "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    assert doctor("--root", folder, log=old).ids() == ["K14"]
    split = "CUDA_HOME environment variable is not set\nNameError: name 'bare_metal_version' is not defined\nERROR: Failed building wheel for mamba-ssm\n"
    assert doctor("--root", folder, log=split).ids() == ["B10"]


def facts_come_from_what_is_pasted(doctor, folder):
    env = """PyTorch version: 2.5.1+cu124
CUDA used to build PyTorch: 12.4
Python version: 3.12.3 | packaged by conda-forge
GPU models and configuration: GPU 0: NVIDIA GeForce RTX 5090
Nvidia driver version: 570.86.10
[pip3] flash_attn==2.7.4.post1
RuntimeError: CUDA error: no kernel image is available for execution on the device
  File "/opt/v/lib/python3.12/site-packages/flash_attn/flash_attn_interface.py", line 91, in _flash_attn_forward
"""
    a = doctor("--root", folder, log=env)
    assert a["target"]["gpus"][0]["cc"] == "12.0" and a["target"]["torch"] == {"version": "2.5.1+cu124", "cuda": "12.4", "cxx11abi": None} and a["target"]["python"] == "3.12", a["target"]
    assert a["target"]["driver"]["version"] == "570.86.10" and "flash-attn" in a.find("K01")["explain"]
    smi = "| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2     |\n|   0  Tesla T4            Off  | 00000000:00:04.0 Off |\nCUDA error: the provided PTX was compiled with an unsupported toolchain.\n"
    a = doctor("--root", folder, log=smi)
    assert a["target"]["gpus"][0]["cc"] == "7.5" and a["target"]["driver"]["cuda"] == "12.2", a["target"]


# Rules whose log texts only point at files or are remarks beside another cause: their cases are in diagnoses.py.
NEVER_FIRST = {"K04", "K15", "B04", "B05", "B08", "S03"}


def every_rule_was_tested_on_a_text_of_its_own(doctor, folder):
    """Each rule that a log can suggest comes first for a text here that is none of the real reports beside the tree; and
    none of those is answered by a rule that has no such text."""
    rules, rule = set(), ""
    for line in TABLES.read_text().splitlines():
        rule = re.match(r"\[rule (\w+)", line).group(1) if line.startswith("[rule ") else "" if line.startswith("[") else rule
        if rule and line.startswith("log "):
            rules.add(rule)
    own = {rule for rule, _, _ in TEXTS if rule}
    assert rules - own == NEVER_FIRST, (rules - own) ^ NEVER_FIRST
    shared = [p.read_text() for p in sorted(SHARED.glob("[0-9]*.txt"))] if SHARED.is_dir() else []
    assert not {t.strip() for t in shared} & {t.strip() for _, _, t in TEXTS}
    used = {f["id"] for text in shared for f in doctor("--root", folder, log=text)["findings"][:1]}
    assert used <= own, used - own
    print(f"{len(rules)} rules of logs, {len(own)} first for a text of their own; {len(used)} of these answer the {len(shared)} shared logs")


again = [every_rule_was_tested_on_a_text_of_its_own] if FEW else []  # the texts of the others
run_tests([v for v in list(globals().values()) if callable(v) and getattr(v, "__module__", "") == "__main__" and v.__name__ not in ("first_screen", "releases", "complaint") and v not in again])
