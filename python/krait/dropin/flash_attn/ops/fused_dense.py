"""Linear layers and the two-layer MLP under upstream's fused extension's names."""

import torch
import torch.nn.functional as F

from krait.ops import linear

_ACTIVATIONS = {"gelu_approx": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "sqrelu": lambda x: F.relu(x).square()}


def fused_dense_func(x, weight, bias=None, return_residual=False, process_group=None, sequence_parallel=True):
    """x weight^T + bias[, x]."""
    if process_group is not None:
        raise NotImplementedError("fused_dense_func: process_group is not supported by krait's drop-in")
    out = linear(x, weight, bias)
    return (out, x) if return_residual else out


class FusedDense(torch.nn.Linear):
    def __init__(self, in_features, out_features, bias=True, return_residual=False, device=None, dtype=None):
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x, process_group=None):
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


def fused_mlp_func(x, weight1, weight2, bias1=None, bias2=None, activation="gelu_approx", save_pre_act=True, return_residual=False, checkpoint_lvl=0,
                   heuristic=0, process_group=None, sequence_parallel=True):
    if activation not in _ACTIVATIONS:
        raise NotImplementedError("activation must be one of %s, not %r" % (", ".join(_ACTIVATIONS), activation))
    if process_group is not None:
        raise NotImplementedError("fused_mlp_func: process_group is not supported by krait's drop-in")
    out = linear(_ACTIVATIONS[activation](linear(x, weight1, bias1)), weight2, bias2)
    return (out, x) if return_residual else out


class FusedMLP(torch.nn.Module):
    def __init__(self, in_features, hidden_features=None, out_features=None, bias1=True, bias2=True, activation="gelu_approx", return_residual=False,
                 checkpoint_lvl=0, heuristic="auto", device=None, dtype=None):
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        self.activation, self.return_residual = activation, return_residual
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = torch.nn.Linear(hidden, in_features if out_features is None else out_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x, process_group=None):
        return fused_mlp_func(x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation, return_residual=self.return_residual,
                              process_group=process_group)
