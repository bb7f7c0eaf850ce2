"""PrimeKnet-Mamba users' four-step acceptance test after an installation, on any device: import, one Mamba block, the
64-channel time network, the whole model; then one optimiser step that must lower the loss.

    python examples/primeknet_steps.py [cpu|cuda]"""

import importlib.util
import pathlib
import sys
import time

import torch
import torch.nn as nn

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
TWIN = pathlib.Path(__file__).resolve().parent.parent / "tools" / "primeknet_twin.py"


def say(step, text, start):
    print("step %d: %-52s %7.1f ms" % (step, text, (time.perf_counter() - start) * 1e3))


def load_twin(mamba_class):
    """PrimeKnet's readable PyTorch twin with mamba_ssm's Mamba (same parameter names)."""
    spec = importlib.util.spec_from_file_location("primeknet_twin", TWIN)
    twin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    if mamba_class is not None:
        twin.Mamba = mamba_class
    return twin


class TimeNetwork(nn.Module):
    """Norm, 1x1 convolution, Mamba along time, 1x1 convolution, residual."""

    def __init__(self, channels, mamba):
        super().__init__()
        self.norm, self.mamba = nn.LayerNorm(channels), mamba
        self.proj_conv1, self.proj_conv2 = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        h = self.proj_conv1(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return x + self.proj_conv2(self.mamba(h.transpose(1, 2)).transpose(1, 2))


def train_step(model, optimiser, x, target):
    optimiser.zero_grad()
    _, _, com = model(x)
    loss = (com - target).square().mean()
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def main():
    torch.manual_seed(0)
    start = time.perf_counter()
    from mamba_ssm import Mamba
    say(1, "import mamba_ssm", start)

    start = time.perf_counter()
    out = Mamba(d_model=16, d_state=16, d_conv=4, expand=2).to(DEVICE)(torch.randn(2, 64, 16, device=DEVICE))
    assert out.shape == (2, 64, 16) and out.isfinite().all()
    say(2, "Mamba(16) on (2, 64, 16)", start)

    start = time.perf_counter()
    network = TimeNetwork(64, Mamba(d_model=64, d_state=16, d_conv=4, expand=2)).to(DEVICE)
    out = network(torch.randn(2, 64, 100, device=DEVICE))
    assert out.shape == (2, 64, 100) and out.isfinite().all()
    say(3, "time network on (2, 64, 100)", start)

    start = time.perf_counter()
    config = dict(fft_len=400, dense_channel=16, sigmoid_beta=2.0, num_tsblock=2, time_block_num=1, freq_block_num=1, mamba_hidden_size=16)
    model = load_twin(Mamba).build("primeknet_mamba", config).to(DEVICE)
    x = torch.randn(2, 201, 100, 2, device=DEVICE)
    mag, pha, com = model(x)
    assert mag.shape == pha.shape == (2, 201, 100) and com.shape == (2, 201, 100, 2) and com.isfinite().all()
    say(4, "PrimeKnet-Mamba on (2, 201, 100, 2)", start)

    start = time.perf_counter()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before, after = [train_step(model, optimiser, x, 0.3 * x) for _ in range(2)]
    assert after < before
    say(5, "one optimiser step: loss %.5f -> %.5f" % (before, after), start)


if __name__ == "__main__":
    main()
