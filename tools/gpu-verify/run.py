#!/usr/bin/env python3
"""run.py WORK: krait on this GPU, as run.sh unpacked it: right numbers first (in parallel), then times (one after the other). Ends by itself before
TOTAL_S. The last lines are one table: stage, result, figure, aim (of an H200). $OUT has log.txt, table.txt, results.json, selftest.txt, pytest.txt, {gemm,few-rows,ssd,modules}.json.
ONLY=words (comma separated) runs the stages whose name has one of them; VERIFY_DEVICE=cpu tries the script without a GPU. Status 1: something is wrong."""
import concurrent.futures
import ctypes
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

W = sys.argv[1]
T0 = float(os.environ.get("VERIFY_T0") or time.time())
TOTAL = float(os.environ.get("TOTAL_S", 390))
CORRECT_UNTIL = float(os.environ.get("CORRECT_UNTIL_S", 175))  # what is right is found out by then, else it is stopped
OUT = os.environ["OUT"]
TREE, LIB, SITE, PY = W + "/tree", W + "/lib", W + "/site", sys.executable
ONLY = [w for w in os.environ.get("ONLY", "").split(",") if w]
os.makedirs(OUT, exist_ok=True)
lock, rows, log = threading.Lock(), [], open(OUT + "/log.txt", "w")
DEVICE = os.environ.get("VERIFY_DEVICE", "cuda")  # cpu: to try this script where there is no GPU


def now():
    return time.time() - T0


def driver_folder():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    for line in open("/proc/self/maps"):
        if "libcuda.so" in line:
            return os.path.dirname(os.path.realpath(line.split()[-1]))


DRIVER = driver_folder()
ENV = dict(os.environ, CUDA_CACHE_MAXSIZE=str(4 << 30), PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", KRAIT_GOLDEN=W + "/golden")
ENV.pop("KRAIT_LIBRARY", None)
PYENV = {"PYTHONPATH": SITE, "KRAIT_INSTALLED": "1", "OMP_NUM_THREADS": "1"}
PATHS = LIB + (":" + DRIVER if DRIVER else "")


def program(name, *args):
    return [LIB + "/ld.so", "--library-path", PATHS, LIB + "/" + name, *map(str, args)]


def wanted(name):
    return not ONLY or any(w in name for w in ONLY)


def tell(stage, result, figure="", aim=""):
    with lock:
        rows.append((stage, result, str(figure), str(aim)))
        print("[%5.1f] %-34s %-8s %s" % (now(), stage[:34], result, figure), flush=True)


def keep(stage, text, status, took):
    with lock:
        log.write("\n======== %s (status %s, %.1f s, until %.1f)\n%s" % (stage, status, took, now(), text[-400000:]))
        log.flush()


running = set()


def execute(stage, command, limit, until=None, env=None, cwd=TREE, merge=True, on_line=None):
    """(status, text, seconds). Interrupted at its limit, or at `until`; killed 3 s later. Status None: not begun."""
    limit = min(limit, (until or TOTAL) - now())
    if limit < 2:
        return None, "", 0.0
    start = time.time()
    p = subprocess.Popen(command, env=dict(ENV, **(env or {})), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True)
    with lock:
        running.add(p)
    late = threading.Event()

    def stop():
        late.set()
        for sig, wait in ((signal.SIGINT, 3), (signal.SIGKILL, 5)):
            try:
                os.killpg(p.pid, sig)
                p.wait(wait)
                return
            except (subprocess.TimeoutExpired, ProcessLookupError):
                pass
    timer = threading.Timer(limit, stop)
    timer.start()
    lines = []
    for line in p.stdout:
        lines.append(line)
        if on_line:
            on_line(line)
    p.wait()
    timer.cancel()
    with lock:
        running.discard(p)
    took, status = time.time() - start, "late" if late.is_set() else p.returncode
    text = "".join(lines)
    keep(stage, text, status, took)
    return status, text, took


def outcome(status):
    return {None: "not run", "late": "LATE", 0: "ok"}.get(status, "WRONG")


def lines_of(text, n=1, only=None):
    found = [l.strip() for l in text.splitlines() if l.strip() and (not only or re.search(only, l))]
    return " | ".join(found[-n:])[-260:]


def findings(text, show):
    """What the groups of a pattern found, each finding once."""
    found = re.findall(show, text, re.M)
    return "; ".join(dict.fromkeys(" ".join(f) if isinstance(f, tuple) else f for f in found))


# ---- right numbers ---------------------------------------------------------------------------------------------------
def check_cmocka(stage, command, limit, aim="", show=None, env=None):
    status, text, took = execute(stage, command, limit, CORRECT_UNTIL, env)
    passed, failed = len(re.findall(r"^\[\s+OK \]", text, re.M)), re.findall(r"^\[\s+FAILED\s+\] (\w+)", text, re.M)
    skipped = len(set(re.findall(r"^\[\s+SKIPPED \] (\w+)", text, re.M)))
    why = lines_of(text, 1, r"error|allowed|not |failures") if failed or status not in (0, None) else ""
    tell(stage, outcome(status), "%d passed%s%s; %.0f s %s %s" % (passed, ", %d skipped" % skipped if skipped else "", ", failed: " + " ".join(sorted(set(failed))) if failed else "", took, findings(text, show) if show else "", why), aim)


def check_op(op):
    stage = "checkop " + op
    status, text, took = execute(stage, program("checkop", op), 75, CORRECT_UNTIL, {"KR_CHECK_DEVICE": DEVICE, "KR_CHECK_SEED": os.environ.get("SEED", "20261127"), "KR_CHECK_PERCENT": "50" if op in CHECKOPS[:4] else "30"})
    tiers = re.findall(r"caps (\S+)\s+(\d+) runs(?: \(\d+ hard\))?,\s+(\d+) refused, worst ([\d.]+|nan|inf)", text)
    bad = "" if status in (0, None) else lines_of(text, 2, r"bound|WRONG|differs|off|error|row")
    tell(stage, outcome(status), "%s; %.0f s %s" % (", ".join("%s %s runs %s" % (name, t[1], t[3]) for name, t in zip(("hopper", "ampere", "turing", "base"), tiers)), took, bad), "of the bound, 1")


def check_script(name, limit=60, env=None, args=(), stage=None, aim="0 wrong"):
    stage = stage or "check " + name
    status, text, took = execute(stage, [PY, W + "/checks.py", name, *args], limit, CORRECT_UNTIL, {**PYENV, **(env or {})})
    n, wrong = len(re.findall(r"^(?:ok|WRONG) ", text, re.M)), re.findall(r"^WRONG (.*)", text, re.M)
    worst = max([float(v) for v in re.findall(r" (\d\.\de[-+]\d\d) \(\de", text)] or [0])
    tell(stage, "WRONG" if wrong else outcome(status), "%d numbers, %d wrong, worst %.1e; %.0f s %s %s" % (n, len(wrong), worst, took, "; ".join(wrong)[:160], lines_of(text) if status not in (0, None) and not wrong else ""), aim)


def check_verify():
    """PrimeKnet against recorded outputs, each tier and precision."""
    def one(job):
        weights, tier, precision, wide = job
        rtol = {"fp32": 1e-5, "tf32": 4e-3 if wide else 1e-2}[precision]
        name = os.path.basename(weights)[:-len(".weights.safetensors")]
        status, text, _ = execute("verify %s %s %s" % (name, tier, precision), program("krait", "verify", weights, weights.replace(".weights.", ".golden."), "--device", DEVICE, *(("--tier", tier) if DEVICE == "cuda" else ()),
                                  "--precision", precision, "--rtol", "%g" % rtol, "--atol", "0.2", "--json"), 40, CORRECT_UNTIL)
        try:
            found = {o["name"]: o["rel_l2"] for o in json.loads(text[text.index("{"):])["outputs"]}
        except ValueError:
            found = {}
        return name, tier, precision, status, found, text
    files = [(f, 0) for f in sorted(glob.glob(TREE + "/tests/golden/primeknet/*.weights.safetensors"))] + [(f, 1) for f in sorted(glob.glob(W + "/golden/primeknet/*.weights.safetensors"))]
    ways = (("ampere", "fp32"), ("ampere", "tf32"), ("base", "fp32"))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, [(f, tier, precision, wide) for tier, precision in ways for f, wide in files]))
    for tier, precision in ways:
        mine = [r for r in results if r[1:3] == (tier, precision)]
        bad = [r for r in mine if r[3] != 0]
        worst = {k: max([r[4].get(k, 0) for r in mine] or [0]) for k in ("com", "mag", "wav")}
        tell("PrimeKnet golden %s %s" % (tier, precision), "ok" if not bad else "WRONG" if any(r[3] not in (None, "late") for r in bad) else "LATE", "%d of %d files, worst %s %s" % (len(mine) - len(bad), len(mine), " ".join("%s %.1e" % i for i in worst.items()),
             "; ".join("%s: %s %s" % (r[0], r[3], r[4] or lines_of(r[5])) for r in bad)[:200]), "1e-5 (fp32), 4e-3 (tf32)")


cpu_ready = threading.Event()


def enhance_on_cpu():
    for name, more in (("cpu", ()), ("cpu_s", ("--weights", "streaming"))):
        execute("enhance 40 s on the CPU " + name, program("krait", "enhance", W + "/float40.wav", "-o", "%s/%s.wav" % (W, name), "-f", "--device", "cpu", "--threads", "4", *more), 60)
    cpu_ready.set()


def check_enhance():
    jobs = (("fp32", "cpu", 1e-4, ("--precision", "fp32")), ("streaming fp32", "cpu_s", 1e-4, ("--weights", "streaming", "--precision", "fp32")), ("tf32", "cpu", 5e-3, ()), ("streaming tf32", "cpu_s", 5e-3, ("--weights", "streaming",)),
            ("base tier fp32", "cpu", 1e-4, ("--tier", "base", "--precision", "fp32")))
    for name, want, limit, more in jobs:
        out = "%s/gpu_%s.wav" % (W, name.replace(" ", "_"))
        stage = "enhance 40 s beside the CPU, " + name
        status, text, took = execute(stage, program("krait", "enhance", W + "/float40.wav", "-o", out, "-f", "--device", DEVICE, *(() if "base" in name or DEVICE == "cpu" else ("--no-fallback",)), *(more if DEVICE == "cuda" else more[:2] if "stream" in name else ())), 45, CORRECT_UNTIL)
        if status != 0:
            tell(stage, outcome(status), lines_of(text), "%g" % limit)
            continue
        cpu_ready.wait(30)
        check_script("compare", 20, None, (out, "%s/%s.wav" % (W, want), "%g" % limit), stage, "%g" % limit)


def check_pytest():
    stage = "tests/python -k cuda"
    n = max(1, min(9, (os.cpu_count() or 2) - 5))
    begin = "test_ssd test_mamba2 test_mamba3 test_mamba_block test_modules test_product test_norms test_mamba_inner test_training test_denoiser test_language_model test_cross_entropy test_selective_scan test_conv1d test_state_update test_attention test_compile test_low_level test_forks test_transformers test_package"
    files = ["tests/python/%s.py" % f for f in begin.split() if os.path.exists("%s/tests/python/%s.py" % (TREE, f))]
    more = os.environ.get("PYTEST_MORE", "").split()
    workers = ["-n", str(n), "--dist", "load"] if n > 1 else []
    status, text, took = execute(stage, [PY, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short", *files, "-k", DEVICE, *workers, *more], 105, CORRECT_UNTIL, PYENV)
    open(OUT + "/pytest.txt", "w").write(text)
    counts = {w: len(re.findall(r"\b%s\b" % w, "\n".join(l for l in text.splitlines() if "::" in l and not l.startswith(w)))) for w in ("PASSED", "FAILED", "SKIPPED", "ERROR")}
    for part in ("test_ssd.py::test_golden", "test_mamba2.py::test_golden", "test_ssd.py", "test_mamba2.py", "test_mamba_block.py", "test_attention.py", "test_norms.py"):
        got = [w for w in re.findall(r"(PASSED|FAILED|SKIPPED|ERROR) tests/python/%s" % re.escape(part), text) + re.findall(r"tests/python/%s\S* (PASSED|FAILED|SKIPPED|ERROR)" % re.escape(part), text)]
        if got:
            tell("  " + part, "ok" if not {"FAILED", "ERROR"} & set(got) else "WRONG", ", ".join("%d %s" % (got.count(w), w.lower()) for w in ("PASSED", "FAILED", "SKIPPED", "ERROR") if w in got))
    failed = sorted(set(re.findall(r"FAILED (?:tests/python/)?(\S+)", text)))
    summary = lines_of(text, 1, r"(passed|failed|error).* in |no tests ran|Error")
    tell(stage, "WRONG" if counts["FAILED"] or counts["ERROR"] else "LATE" if status == "late" else outcome(status), "%s; %s; %.0f s %s" % (", ".join("%d %s" % (v, k.lower()) for k, v in counts.items()), summary, took, " ".join(failed)[:300]), "all")


CHECKOPS = ("ssd ssd_bwd gemm attention_bwd gated_norm_bwd mamba_inner mamba_inner_bwd mamba2_inner norm_gemm dt_state_update state_update gated_norm to_polar from_polar transform attention attention_step gemm_q8 gemm_q4k "
            "mamba3 mamba3_bwd mamba3_step mamba3_decay mamba3_decay_bwd mamba3_inner mamba3_inner_bwd mamba3_raw_step mamba3_decode conv3d group_norm expert_gemm expert_step gated_delta_rule gated_delta_update dense_block conv_norm map_product rnn_bwd selective_scan selective_scan_bwd "
            "mamba2_inner_bwd pointwise cross_entropy cross_entropy_bwd").split()


def correctness_jobs():
    jobs = [("tests/python", check_pytest), ("enhance", check_enhance)]
    jobs += [("checkop " + op, lambda op=op: check_op(op)) for op in CHECKOPS[:4]]
    jobs += [("language", lambda: check_cmocka("recorded steps of language models", program("test_cuda_language"), 75, "float32 2e-5", r"^((?:Mamba|Qwen).*)"))]
    jobs += [("report", lambda: check_script("report")), ("graph_block", lambda: check_script("graph_block")), ("verify", check_verify)]
    jobs += [("models primeknet", lambda: check_cmocka("test_models_primeknet (windows)", program("test_models_primeknet"), 100, "1e-4", r"(windows on the GPU.*)"))]
    jobs += [("wide_attention", lambda: check_script("wide_attention", 60, {"KRAIT_TIER": "base"}, (), "attention gradient D > 128, base tier"))]
    jobs += [("gated_norm base", lambda: check_script("gated_norm", 60, {"KRAIT_TIER": "base"}, (), "gated norm 5377..5632, base tier")), ("gated_norm", lambda: check_script("gated_norm", 60, {}, (), "gated norm 5377..5632, best tier"))]
    jobs += [("checkop " + op, lambda op=op: check_op(op)) for op in CHECKOPS[4:10]]
    jobs += [("models " + n, lambda n=n: check_cmocka("test_models_%s %s" % (n, DEVICE), program("test_models_" + n, DEVICE), 45)) for n in ("mamba_lm", "qwen2", "hybrids", "videogpt", "videomamba")]
    jobs += [("trainer", lambda: check_cmocka("test_train_trainer " + DEVICE, program("test_train_trainer", DEVICE), 60, "golden gradients 1e-4", r"^(\w+): \d+ gradients golden.grad. within (\S+)"))]
    jobs += [("checkop " + op, lambda op=op: check_op(op)) for op in CHECKOPS[10:]]
    jobs.insert(14, ("big", lambda: check_script("big", 60, None, (), "SSD of 2^31 elements, L 2^20")))
    jobs.insert(15, ("big_mamba3", lambda: check_script("big_mamba3", 60, None, (), "Mamba-3 of 2^31 elements, L 2^20")))
    return [(name, job) for name, job in jobs if wanted(name)]


# ---- times -----------------------------------------------------------------------------------------------------------
def time_hour():
    for name, more, aim in (("0.72M", (), ""), ("1.26M", ("--weights", W + "/m126.safetensors"), "")):
        times, status, text = [], None, ""
        for _ in range(3 if name == "0.72M" else 1):
            status, text, took = execute("an hour of sound, " + name, program("krait", "enhance", W + "/hour.wav", "-o", W + "/hour_out.wav", "-f", "--device", DEVICE, *more), 25)
            if status != 0:
                break
            times.append(took)
        tell("an hour of sound, " + name + ", s", outcome(status) if not times else "time", " ".join("%.2f" % t for t in times) or lines_of(text), aim)


def time_primeknet():
    for weights, label, batch, frames, runs, aim in ((None, "0.72M B2 T100", 2, 100, 30, ""), ("m126", "1.26M B2 T100", 2, 100, 30, "1.76"), ("m126", "1.26M B1 T401", 1, 401, 30, ""), ("m126", "1.26M B16 T321", 16, 321, 8, "29.7"),
                                                     ("m045", "0.45M B2 T100", 2, 100, 30, "0.723"), ("lstm153", "LSTM B2 T100", 2, 100, 20, ""), ("gru140", "GRU B2 T100", 2, 100, 20, "")):
        status, text, _ = execute("bench primeknet " + label, program("krait", "bench", "primeknet", *(("--weights", "%s/%s.safetensors" % (W, weights)) if weights else ()), "--device", DEVICE, "--batch", batch, "--frames", frames, "--runs", runs, "--json"), 20)
        try:
            t = json.loads(text[text.index("{"):])
            tell("PrimeKnet " + label + ", ms", "time", "%.3f on the GPU; host median %.2f" % (1e3 * t["device_s"], 1e3 * t["median_s"]), aim)
        except ValueError:
            tell("PrimeKnet " + label, outcome(status), lines_of(text), aim)


def time_modules():
    aims = {"Mamba 768,8,2048": "0.42; 1.7", "Mamba 2560,2,2048": "0.66; 2.4", "Mamba 64,402,100": "0.25; 1.2", "Mamba2 768,8,2048": "0.40; 1.5", "Mamba2 2560,2,4096": "1.15; 3.6", "Mamba2 512,1,1024": ""}
    status, text, took = execute("modules", [PY, TREE + "/tools/bench_peers.py", "modules", "--json", OUT + "/modules.json"], 60, None, {"PYTHONPATH": SITE})
    for kind, d, b, length, forward, both, fh, bh in re.findall(r"^(\w+)\((\d+)\) B(\d+) L(\d+)\s+krait ([\d.]+|nan) ([\d.]+|nan) (?:[\d.]+|nan) ([\d.]+|nan) ([\d.]+|nan)", text, re.M):
        tell("%s(%s) B%s L%s, ms" % (kind, d, b, length), "time", "%s; %s (host %s; %s)" % (forward, both, fh, bh), aims.get("%s %s,%s,%s" % (kind, d, b, length), ""))
    if status != 0:
        tell("modules", outcome(status), lines_of(text))


def time_peers(what, limit, pattern, tell_line, tiers="hopper,ampere"):
    """bench_peers.py's lines that match."""
    command = [PY, TREE + "/tools/bench_peers.py", what, "--krait", shlex.join(program("krait")), "--tiers", tiers, "--json", OUT + "/%s.json" % what]
    status, text, _ = execute(what + " times", command, limit, None, PYENV)
    for m in re.finditer(pattern, text, re.M):
        tell_line(*m.groups())
    if status != 0:
        tell(what + " times", outcome(status), lines_of(text))


def time_ssd():
    aims = {"B=8,L=4096,H=80,P=64,N=128": ("0.40", "1.3"), "B=1,L=2048,H=24,P=64,N=128": ("0.05", "0.2"), "B=1,L=65536,H=80,P=64,N=128": ("0.85", "2.7"), "B=32,L=512,H=24,P=64,N=128": ("0.10", "0.35"),
            "B=8,L=2048,H=64,P=64,N=256": ("0.35", "1.1")}
    time_peers("ssd", 60, r"^(ssd(?:_bwd)?) +(\S+) +krait hopper (\S+) +krait ampere (\S+)",
               lambda op, shape, hopper, ampere: tell("%s %s, ms" % (op, shape), "time", "%s (ampere %s)" % (hopper, ampere), aims.get(shape, ("", ""))[op == "ssd_bwd"]))


def time_gemm():
    time_peers("gemm", 55, r"^gemm +(\S+) +krait hopper (\S+) +krait ampere (\S+) +torch (\S+)",
               lambda shape, hopper, ampere, cublas: tell("gemm %s, TFLOP/s" % shape, "time", "%s (ampere %s, cuBLAS %s)" % (hopper, ampere, cublas), "0.9 of cuBLAS; ampere 0.65 of hopper"))
    time_peers("few-rows", 75, r"^gemm +(\S+) +krait hopper (\S+) +torch (\S+)",
               lambda shape, hopper, cublas: tell("gemm %s, GB/s" % shape, "time", "%s (cuBLAS %s)" % (hopper, cublas), "0.85 of a copy"), "hopper")


def time_generate():
    jobs = [("mamba-2.8b", "float16", 1, "1.6; prompt 14"), ("mamba2-2.7b", "float16", 1, "1.6; prompt 14"), ("mamba-130m", "float16", 1, "0.25; prompt 2"), ("mamba2-130m", "float16", 1, "0.25; prompt 2"),
            ("mamba-2.8b", "q8_0", 1, "1.2"), ("mamba-2.8b", "float16", 64, "3.2"), ("mamba2-2.7b", "float16", 64, "5.0"), ("mamba-130m", "float16", 64, "0.5"), ("mamba2-130m", "float16", 64, "0.7"),
            ("qwen2-0.5b", "bfloat16", 1, "token 0.6; prompt 4"), ("mamba-130m", "q8_0", 1, "")]
    for sizes, dtype, batch, aim in jobs:
        prompt = 1000 if sizes.startswith("qwen") else 1024 if batch == 1 else 16
        label = "%s %s%s" % (sizes, dtype, ", 64 sequences, narrow" if batch > 1 else "")
        status, text, _ = execute("generate " + label, program("krait", "bench", "generate", "--sizes", sizes, "--dtype", dtype, "--batch", batch, "--prompt", prompt, "--tokens", 48, "--device", DEVICE, "--json", *(("--state-dtype", "weights",) if batch > 1 else ())), 25)
        try:
            t = json.loads(text[text.index("{"):])
            tell(label + ", ms", "time", "step %.4f  token %.3f%s" % (1e3 * t["step_s"], 1e3 * t["token_s"], "  prompt of %d %.2f" % (prompt, 1e3 * t["prompt_s"]) if batch == 1 else ""), aim)
        except (ValueError, TypeError):
            tell(label, outcome(status), lines_of(text), aim)


def time_train():
    for label, more, aim in (("float16", ("precision=float16",), "130; 110"), ("tf32", (), "130; 110")):
        status, text, _ = execute("train " + label, program("krait", "bench", "train", "+model=primeknet_mamba_masking", "batch_size=16" if DEVICE == "cuda" else "batch_size=1", *more, "--device", DEVICE, "--runs", 5, "--json"), 40)
        try:
            t = json.loads(text[text.index("{"):])
            tell("train Mamba B16 %s, ms" % label, "time", "whole %.2f; without discriminator %.2f; %.1f GB" % (t["step_ms"], t["generator_ms"], 1e-9 * t["step_bytes"]), aim)
        except ValueError:
            tell("train " + label, outcome(status), lines_of(text), aim)


def time_tiers():
    """docs/SPEED.md's table by type and tier: as many of its cells as there is time for; in log.txt."""
    left = TOTAL - now() - 10
    status, text, _ = execute("tiers", [PY, TREE + "/tools/bench_tiers.py", "--krait", shlex.join(program("krait")), "--device", DEVICE, "--limit", "%.0f" % (left - 15)], left)
    behind = [l for l in text.splitlines() if " times behind " in l]
    tell("by type and tier", "time" if status == 0 else outcome(status), "; ".join(behind)[:200] or "%d rows in log.txt" % (len(re.findall(r"^\| .*\d", text, re.M))), "none ten times behind its neighbour")


# ---- all of it -------------------------------------------------------------------------------------------------------
def prepare():
    status, text, took = execute("pip", [PY, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", SITE, *glob.glob(W + "/wheels/*.whl")], 60)
    tell("wheels installed", outcome(status), "%.0f s %s" % (took, lines_of(text)))


def selftest(compiled):
    found = []

    def on_line(line):
        if " runs " in line and not compiled.is_set():
            found.append(now())
            compiled.set()
    command = program("krait", "selftest", "--device", DEVICE) + (["--cases", "1"] if DEVICE == "cpu" else [])
    status, text, took = execute("selftest", command, 140, CORRECT_UNTIL, on_line=on_line)
    open(OUT + "/selftest.txt", "w").write(text)
    wrong = [l.strip() for l in text.splitlines() if "WRONG" in l or "failures, the first" in l]
    tell("krait selftest", outcome(status), "%.1f s, first line at %.1f; %s %s" % (took, found[0] if found else -1, lines_of(text), " | ".join(wrong)[:400] if status else ""), "none wrong")
    compiled.set()


def smi():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu", "--format=csv,noheader"], capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "no nvidia-smi"


def summary():
    log.flush()
    width = 46
    lines = ["", "== %s; tree %s; %.0f s; driver %s" % (smi(), open(W + "/commit").read().strip(), now(), DRIVER), "%-*s %-7s %s" % (width, "stage", "result", "figure  [aim]")]
    bad = [r for r in rows if r[1] not in ("ok", "time")]
    for stage, result, figure, aim in sorted(rows, key=lambda r: r[1] == "time"):
        lines.append(("%-*s %-7s %s%s" % (width, stage[:width], result, figure[: 300 if result not in ("ok", "time") else 160].strip(), "  [%s]" % aim if aim else "")).rstrip())
    lines.append("== not ok: " + ("; ".join("%s: %s" % (r[0], r[1]) for r in bad) or "none"))
    text = "\n".join(lines)
    open(OUT + "/table.txt", "w").write(text + "\n")
    json.dump(rows, open(OUT + "/results.json", "w"), indent=0)
    print(text, flush=True)
    return 1 if bad else 0


def main():
    print("%s; %d cores; driver in %s" % (smi(), os.cpu_count(), DRIVER), flush=True)
    compiled = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SLOTS", 14))) as pool:
        futures = [pool.submit(selftest, compiled)] if wanted("selftest") else compiled.set() or []
        first = [pool.submit(prepare), pool.submit(execute, "prepare sound", [PY, W + "/prep.py", W, "sound"], 60), pool.submit(execute, "prepare weights", [PY, W + "/prep.py", W, "weights"], 60)]
        for f in first:
            f.result()
        futures.append(pool.submit(enhance_on_cpu))
        compiled.wait(max(0.1, 62 - now()))
        for name, job in correctness_jobs():
            futures.append(pool.submit(job))
        for f in futures:
            try:
                f.result()
            except Exception as e:
                tell("a stage of this script", "BROKEN", repr(e))
    print("[%5.1f] times now, alone; %s" % (now(), smi()), flush=True)
    for name, job in (("hour", time_hour), ("ssd times", time_ssd), ("modules", time_modules), ("gemm", time_gemm), ("generate", time_generate), ("train", time_train), ("primeknet", time_primeknet), ("tiers", time_tiers)):
        if wanted(name):
            try:
                job()
            except Exception as e:
                tell(name, "BROKEN", repr(e))
    return summary()


sys.exit(main())
