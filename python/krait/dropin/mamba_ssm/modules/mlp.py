"""Gated MLP: fc1 produces value and gate, fc2 projects back."""

import torch.nn.functional as F
from torch import nn

from krait.ops import apply_linear


class GatedMLP(nn.Module):
    def __init__(self, in_features, hidden_features=None, out_features=None, activation=F.silu, bias=False, multiple_of=128,
                 device=None, dtype=None):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        hidden = hidden_features if hidden_features is not None else int(8 * in_features / 3)
        hidden = (hidden + multiple_of - 1) // multiple_of * multiple_of
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias, **factory)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, in_features if out_features is None else out_features, bias=bias, **factory)

    def forward(self, x):
        value, gate = apply_linear(self.fc1, x).chunk(2, dim=-1)
        return apply_linear(self.fc2, value * self.activation(gate))
