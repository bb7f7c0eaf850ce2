"""Random configurations and edge cases from the PyTorch twin against `krait verify`; skipped without PyTorch."""
import json, os, subprocess, sys, tempfile

program, twin = sys.argv[1:]
SEEDS = (("mamba", 201), ("gru", 202), ("lstm", 203))
try:
    import torch
except ImportError:
    system = "/usr/bin/python3"  # may have the distribution's PyTorch if another Python comes first
    if os.path.exists(system) and os.path.realpath(system) != os.path.realpath(sys.executable) and "PRIMEKNET_RANDOM_AGAIN" not in os.environ:
        os.environ["PRIMEKNET_RANDOM_AGAIN"] = "1"
        os.execv(system, [system] + sys.argv)
    print("no PyTorch for this Python")
    sys.exit(77)
torch.set_num_threads(1)
sys.path.insert(0, os.path.dirname(twin))
import primeknet_twin

# name, stage, differences from SMALL, frames
SMALL = dict(fft_len=400, dense_channel=6, sigmoid_beta=1.5, dense_depth=2, num_tsblock=1, time_block_num=1, freq_block_num=1, freq_block_kernel=[3, 5], causal=False)
EDGES = (
    ("no-dense-layers", "mamba", dict(dense_depth=0), 3), ("one-dense-layer", "gru", dict(dense_depth=1), 5), ("deep", "mamba", dict(dense_depth=5, causal=True), 50),
    ("one-frame", "mamba", dict(dense_depth=4), 1), ("no-blocks", "mamba", dict(num_tsblock=0), 9), ("no-time", "gru", dict(time_block_num=0), 9),
    ("no-freq", "mamba", dict(freq_block_num=0), 9), ("short-transform", "lstm", dict(fft_len=8, freq_block_kernel=[1]), 70),
    ("kernel-twice", "mamba", dict(freq_block_kernel=[3, 3, 9]), 12), ("wide", "mamba", dict(dense_channel=70, mamba_hidden_size=33), 66),
    ("one-channel", "gru", dict(dense_channel=1, gru_hidden_size=1, gru_layers=1), 7), ("short-filter", "mamba", dict(mamba_d_conv=1, mamba_expand=1, mamba_d_state=40), 66),
    ("long-filter", "mamba", dict(mamba_d_conv=9), 66),
)
# The twin uses another transform for the waveform, which alone changes it by up to 1e-5.
BOUNDS = {"com": 1e-5, "mag": 1e-5, "wav": 3e-5}


def write_edge(base, stage, changes, frames):
    gen = torch.Generator().manual_seed(frames)
    torch.manual_seed(frames)
    cfg = dict(SMALL, **changes)
    net = primeknet_twin.build("primeknet_" + stage, cfg)
    primeknet_twin.randomise(net, gen)
    meta = {"model": "primeknet_" + stage, "config": json.dumps(cfg)}
    primeknet_twin.save_safetensors(base + ".weights.safetensors", net.state_dict(), meta)
    shape = (2, cfg["fft_len"] // 2 + 1, frames)
    mag, pha = torch.rand(shape, generator=gen) + 0.05, (torch.rand(shape, generator=gen) * 2 - 1) * 3.1
    com = torch.stack((mag * pha.cos(), mag * pha.sin()), -1)
    with torch.no_grad():
        out = net.double()(com.double())
    primeknet_twin.save_safetensors(base + ".golden.safetensors",
                                    {"golden.input_com": com, "golden.mag": out[0].float(), "golden.com": out[2].float()}, meta)


def is_met(base, names):
    done = subprocess.run([program, "verify", "--device", "cpu", "--json", base + ".weights.safetensors", base + ".golden.safetensors"], capture_output=True, text=True)
    rows = json.loads(done.stdout)["outputs"] if done.stdout else []
    print(os.path.basename(base), {row["name"]: (row["rel_l2"], row["max_abs"]) for row in rows}, done.stderr)
    return {row["name"] for row in rows} == names and all(row["rel_l2"] <= BOUNDS[row["name"]] and row["max_abs"] <= 2e-4 for row in rows)


failed = 0
with tempfile.TemporaryDirectory() as folder:
    for stage, seed in SEEDS:
        for causal in (False, True):
            base = os.path.join(folder, f"{stage}-{causal}")
            primeknet_twin.random_golden(folder, seed + causal, stage, causal, os.path.basename(base))
            failed += not is_met(base, {"com", "mag", "wav"})
    for name, stage, changes, frames in EDGES:
        base = os.path.join(folder, name)
        write_edge(base, stage, changes, frames)
        failed += not is_met(base, {"com", "mag"})
sys.exit(1 if failed else 0)
