"""Mlp, gated Mlp, fused Mlp."""

import torch
import torch.nn.functional as F

from flash_attn.ops.activations import swiglu  # noqa: F401
from flash_attn.ops.fused_dense import ColumnParallelLinear, FusedMLP, ParallelFusedMLP, RowParallelLinear
from krait.ops import apply_linear

__all__ = ["Mlp", "ParallelMLP", "GatedMlp", "ParallelGatedMlp", "FusedMLP", "ParallelFusedMLP"]


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


class ParallelMLP(torch.nn.Module):
    """Mlp with its hidden features split over a group."""

    def __init__(self, in_features, hidden_features=None, out_features=None, activation=F.gelu, process_group=None, sequence_parallel=True, bias1=True, bias2=True,
                 device=None, dtype=None):
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        place = dict(sequence_parallel=sequence_parallel, device=device, dtype=dtype)
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias=bias1, **place)
        self.fc2 = RowParallelLinear(hidden, in_features if out_features is None else out_features, process_group, bias=bias2, **place)

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


def _gated(y, activation):
    if activation is F.sigmoid:
        return F.glu(y, dim=-1)
    values, gates = y.chunk(2, dim=-1)
    return values * activation(gates)


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
        y = apply_linear(self.fc2, _gated(apply_linear(self.fc1, x), self.activation))
        return (y, x) if self.return_residual else y


class ParallelGatedMlp(torch.nn.Module):
    """GatedMlp with its hidden features split over a group; a process has the values of its features, then their gates."""

    def __init__(self, in_features, process_group, hidden_features=None, out_features=None, activation=F.sigmoid, bias1=True, bias2=True, multiple_of=128,
                 sequence_parallel=True, device=None, dtype=None):
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        place = dict(sequence_parallel=sequence_parallel, device=device, dtype=dtype)
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, 2 * hidden, process_group, bias=bias1, **place)
        self.fc2 = RowParallelLinear(hidden, in_features if out_features is None else out_features, process_group, bias=bias2, **place)

    def forward(self, x):
        return self.fc2(_gated(self.fc1(x), self.activation))
