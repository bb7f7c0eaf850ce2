"""Mlp, gated Mlp, fused Mlp."""

import torch
import torch.nn.functional as F

from flash_attn.ops.fused_dense import FusedMLP
from krait.ops import apply_linear

__all__ = ["Mlp", "GatedMlp", "FusedMLP"]


class Mlp(torch.nn.Module):
    def __init__(self, in_features, hidden_features=None, out_features=None, activation=F.gelu, bias1=True, bias2=True, return_residual=False, device=None,
                 dtype=None):
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = torch.nn.Linear(hidden, in_features if out_features is None else out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x):
        y = apply_linear(self.fc2, self.activation(apply_linear(self.fc1, x)))
        return (y, x) if self.return_residual else y


class GatedMlp(torch.nn.Module):
    """fc1 produces values, then gates: fc2(values activation(gates)); hidden features are rounded up to multiple_of."""

    def __init__(self, in_features, hidden_features=None, out_features=None, activation=F.sigmoid, bias1=True, bias2=True, multiple_of=128,
                 return_residual=False, device=None, dtype=None):
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = torch.nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = torch.nn.Linear(hidden, in_features if out_features is None else out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x):
        y = apply_linear(self.fc1, x)
        if self.activation is F.sigmoid:
            y = F.glu(y, dim=-1)
        else:
            values, gates = y.chunk(2, dim=-1)
            y = values * self.activation(gates)
        y = apply_linear(self.fc2, y)
        return (y, x) if self.return_residual else y
