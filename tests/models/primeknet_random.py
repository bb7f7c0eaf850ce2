"""Random configurations from the PyTorch twin against `krait verify`; skipped where there is no PyTorch."""
import json, os, subprocess, sys, tempfile

program, twin = sys.argv[1:]
SEEDS = (("mamba", 201), ("gru", 202), ("lstm", 203))
try:
    import torch
except ImportError:
    system = "/usr/bin/python3"  # may have the distribution's PyTorch where another Python comes first
    if os.path.exists(system) and os.path.realpath(system) != os.path.realpath(sys.executable) and "PRIMEKNET_RANDOM_AGAIN" not in os.environ:
        os.environ["PRIMEKNET_RANDOM_AGAIN"] = "1"
        os.execv(system, [system] + sys.argv)
    print("no PyTorch for this Python")
    sys.exit(77)
torch.set_num_threads(1)
sys.path.insert(0, os.path.dirname(twin))
import primeknet_twin

failed = 0
with tempfile.TemporaryDirectory() as folder:
    for stage, seed in SEEDS:
        for causal in (False, True):
            name = f"{stage}-{causal}"
            primeknet_twin.random_golden(folder, seed + causal, stage, causal, name)
            base = os.path.join(folder, name)
            # The waveform went through another transform in the twin, which alone moves it by up to 1e-5.
            bounds = {"com": 1e-5, "mag": 1e-5, "wav": 3e-5}
            done = subprocess.run([program, "verify", "--device", "cpu", "--json", base + ".weights.safetensors", base + ".golden.safetensors"],
                                  capture_output=True, text=True)
            rows = json.loads(done.stdout)["outputs"] if done.stdout else []
            print({row["name"]: (row["rel_l2"], row["max_abs"]) for row in rows}, done.stderr)
            failed += {row["name"] for row in rows} != set(bounds) or any(row["rel_l2"] > bounds[row["name"]] or row["max_abs"] > 2e-4 for row in rows)
sys.exit(1 if failed else 0)
