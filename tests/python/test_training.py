"""Training a small PrimeKnet-Mamba with the drop-in follows the pure PyTorch loop, and is faster."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
_EXAMPLES = os.path.join(_ROOT, "examples")
CONFIG = dict(fft_len=400, dense_channel=8, sigmoid_beta=2.0, dense_depth=2, num_tsblock=1, time_block_num=2, freq_block_num=1,
              mamba_hidden_size=16, freq_block_kernel=(3, 11))


def load_twin(mamba_class=None):
    sys.path.insert(0, _EXAMPLES)
    try:
        from primeknet_steps import load_twin
    finally:
        sys.path.remove(_EXAMPLES)
    return load_twin(mamba_class)


@pytest.fixture
def one_thread():
    """One thread: on a busy machine threads wait for each other, which would be timed."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def train(model, steps, device):
    """-> (losses, seconds of the steps after the first; CPU time on the CPU)."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    losses, start = [], None
    for step in range(steps):
        x = torch.randn(1, 201, 60, 2, generator=generator).to(device)
        optimiser.zero_grad()
        _, _, com = model(x)
        loss = (com - 0.3 * x).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        start = start or clock()
    return losses, clock() - start


def test_follows_the_reference_loop(device, one_thread):
    from mamba_ssm import Mamba
    steps = 20
    torch.manual_seed(3)
    plain = load_twin().build("primeknet_mamba", CONFIG).to(device)
    ours = load_twin(Mamba).build("primeknet_mamba", CONFIG).to(device)
    ours.load_state_dict(plain.state_dict())
    want, slow = train(plain, steps, device)
    got, fast = train(ours, steps, device)
    print("losses %.5f -> %.5f; reference loop %.2f s, krait %.2f s" % (got[0], got[-1], slow, fast))
    assert got[-1] < got[0]
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-4
    assert fast < slow


@pytest.mark.parametrize("name", ["train_mamba.py", "primeknet_steps.py", "train_primeknet.py --steps 2 --batch 1 --samples 3200"])
def test_examples(name):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    script, *options = name.split()
    done = subprocess.run([sys.executable, os.path.join(_EXAMPLES, script), *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_loop_continues_from_a_file(tmp_path):
    """The program's weights, whose tensor order differs from PyTorch's."""
    start = next((pathlib.Path(_ROOT) / "src/models/primeknet/weights").glob("primeknet_mamba*.safetensors"))
    out = tmp_path / "tuned.safetensors"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, os.path.join(_EXAMPLES, "train_primeknet.py"), "--steps", "1", "--batch", "1", "--samples", "3200", "--weights", str(start), "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shapes = [{k: v["shape"] for k, v in json.loads(p.read_bytes()[8:8 + int.from_bytes(p.read_bytes()[:8], "little")]).items() if k != "__metadata__"} for p in (start, out)]
    assert shapes[0] == shapes[1]
