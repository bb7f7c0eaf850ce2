"""Linear layers and the two-layer MLP under upstream's fused extension's names."""

import torch
import torch.nn.functional as F

from krait._collectives import all_reduce, reduce_scatter
from krait._function import function_by_name
from krait._sharded import ColumnParallelLinear, RowParallelLinear, parallel_linear_func  # noqa: F401
from krait.ops import linear

_ACTIVATIONS = {"gelu_approx": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "sqrelu": lambda x: F.relu(x).square()}


def fused_dense_func(x, weight, bias=None, return_residual=False, process_group=None, sequence_parallel=True):
    """x weight^T + bias[, x]; process_group: x is split along its first axis (sequence_parallel) or replicated."""
    out = parallel_linear_func(x, weight, bias, process_group, sequence_parallel)
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
    hidden = parallel_linear_func(x, weight1, bias1, process_group, sequence_parallel)
    out = linear(_ACTIVATIONS[activation](hidden), weight2, bias2)
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


class ParallelFusedMLP(torch.nn.Module):
    """FusedMLP with its hidden features split over a group."""

    def __init__(self, in_features, hidden_features=None, out_features=None, activation="gelu_approx", process_group=None, bias1=True, bias2=True,
                 sequence_parallel=True, checkpoint_lvl=0, heuristic="auto", device=None, dtype=None):
        super().__init__()
        assert process_group is not None, "ParallelFusedMLP needs a process_group"
        hidden = 4 * in_features if hidden_features is None else hidden_features
        self.activation, self.process_group, self.sequence_parallel = activation, process_group, sequence_parallel
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias=bias1, device=device, dtype=dtype)
        self.fc2 = RowParallelLinear(hidden, in_features if out_features is None else out_features, process_group, bias=bias2, device=device, dtype=dtype)

    def forward(self, x):
        out = fused_mlp_func(x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation, process_group=self.process_group,
                             sequence_parallel=self.sequence_parallel)
        return (reduce_scatter if self.sequence_parallel else all_reduce)(out, self.process_group)


FusedDenseFunc = function_by_name("FusedDenseFunc", fused_dense_func)
FusedMLPFunc = function_by_name("FusedMLPFunc", lambda x, weight1, bias1, weight2, bias2, *options: fused_mlp_func(x, weight1, weight2, bias1, bias2, *options))
