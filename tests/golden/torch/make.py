"""Writes tests/golden/torch: files saved by PyTorch, and the same tensors as safetensors. Needs torch and omegaconf.

  python3 tests/golden/torch/make.py tests/golden/torch
"""
import json
import pathlib
import struct
import sys
from collections import OrderedDict

import torch
from omegaconf import OmegaConf

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 4, 3)
        self.norm = torch.nn.BatchNorm1d(4)              # an int64 scalar among its buffers
        self.gru = torch.nn.GRU(4, 5, batch_first=True)  # parameters share one storage after flatten_parameters
        self.beta = torch.nn.Parameter(torch.zeros(1, 4, 1))

    def forward(self, x):
        return self.gru((self.norm(self.conv(x)) + self.beta).transpose(1, 2))[0]


def save_safetensors(path, tensors):
    header, data = {}, b""
    for name, t in sorted(tensors.items(), key=lambda kv: -kv[1].element_size()):
        raw = t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    net, critic = Net(), torch.nn.utils.spectral_norm(torch.nn.Linear(3, 2))
    optim = torch.optim.AdamW(net.parameters(), lr=5e-4, betas=(0.8, 0.99))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optim, 0.99)
    net(torch.randn(2, 3, 9)).square().mean().backward()
    optim.step()
    scheduler.step()
    state = net.state_dict()
    args = OmegaConf.create({"model": {"model_lib": "primeknet_mamba", "param": {"fft_len": 400, "freq_block_kernel": [3, 11]}}, "lr": 5e-4, "continue_from": None})

    save_safetensors(out / "model.safetensors", state)
    torch.save({"model": state}, out / "best.th")
    torch.save({"model": state, "best_state": {"model": state}, "discriminator": critic.state_dict(), "optimizer": optim.state_dict(),
                "optimizer_disc": None, "scheduler": scheduler.state_dict(), "args": args,
                "history": [{"train": {"loss": 0.5, "n": 2 ** 70}, "valid": {"loss": float("inf")}, "best": True}], "best_loss": torch.tensor(0.25)},
               out / "checkpoint.th")
    torch.save(state, out / "protocol4.pt", pickle_protocol=4)
    torch.save(dict(net.named_parameters()), out / "parameters.pt")
    torch.save(state, out / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(net, out / "module.pt")

    base = torch.arange(24, dtype=torch.float32)
    odd = OrderedDict(transposed=base.reshape(4, 6).t(), part=base[5:9], strided=base.reshape(2, 3, 4)[:, 1:, ::2], scalar=base[3], empty=base[:0].reshape(0, 7))
    for dtype in NAMES:
        odd[str(dtype).split(".")[1]] = torch.arange(6).reshape(2, 3).to(dtype)
    torch.save(odd, out / "odd.pt")
    save_safetensors(out / "odd.safetensors", odd)
    torch.save({"wide": torch.ones(1).expand(1000, 1000)}, out / "expanded.pt")


main(pathlib.Path(sys.argv[1]))
