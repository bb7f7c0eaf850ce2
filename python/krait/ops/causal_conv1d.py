"""Causal depthwise convolution: forward, backward, decoding step, states of packed sequences."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .._call import Operator, place
from .._torch import custom_op, differentiable, is_tracked, zeros_like

_FORWARD = Operator("causal_conv1d")
_BACKWARD = Operator("causal_conv1d_bwd")
_UPDATE = Operator("causal_conv1d_update", x=(2, 3), out=(2, 3))
_VARLEN = Operator("causal_conv1d_varlen_states")
_REVERSE = 1  # KRAIT_CONV1D_REVERSE


def activation_code(activation):
    if activation is None:
        return 0
    if activation not in ("silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish, not %r" % (activation,))
    return 1


def _empty_states(x, width):
    """(B, D, width), channel-last in memory."""
    return torch.empty(x.shape[0], width, x.shape[1], dtype=x.dtype, device=x.device).transpose(1, 2)


def _refuse(x, weight, bias, seq_idx, initial_states):
    names = ("x", "weight", "bias", "seq_idx", "initial_states")
    given = ", ".join("%s %s %s" % (n, tuple(t.shape), t.dtype) for n, t in zip(names, (x, weight, bias, seq_idx, initial_states))
                      if t is not None)
    raise RuntimeError("causal_conv1d: x must be (B, D, L), weight (D, W), bias (D), seq_idx (B, L) int32, initial_states "
                       "(B, D, W-1); got " + given)


def run_forward(x, weight, bias, seq_idx, initial_states, silu, reverse, out, final):
    """The plain call, into given outputs."""
    if x.dim() != 3 or weight.dim() != 2:
        _refuse(x, weight, bias, seq_idx, initial_states)
    b, d, length = x.shape
    dim, width = weight.shape
    if (dim != d or (bias is not None and (bias.dim() != 1 or bias.shape[0] != d))
            or (seq_idx is not None and (seq_idx.dtype != torch.int32 or seq_idx.shape != (b, length)))
            or (initial_states is not None and initial_states.shape != (b, d, width - 1))):
        _refuse(x, weight, bias, seq_idx, initial_states)
    _FORWARD.run(place(x, weight, bias, seq_idx, initial_states), _REVERSE if reverse else 0, B=b, D=d, L=length, W=width,
                 activation=silu, x=x, weight=weight, bias=bias, seq_idx=seq_idx, initial_states=initial_states, out=out,
                 final_states=final)


def run_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse, dx, dweight, dbias, dinitial):
    """The plain call, into given gradients (None: not computed)."""
    b, d, length = x.shape
    _BACKWARD.run(place(x, weight, bias, seq_idx, initial_states, dout, dfinal), _REVERSE if reverse else 0, B=b, D=d,
                  L=length, W=weight.shape[1], activation=silu, x=x, weight=weight, bias=bias, seq_idx=seq_idx,
                  initial_states=initial_states, dout=dout, dfinal_states=dfinal, dx=dx, dweight=dweight, dbias=dbias,
                  dinitial_states=dinitial)


def _fake_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse):
    return [None if t is None else torch.empty_like(t) for t in (x, weight, bias, initial_states)]


@custom_op("causal_conv1d_bwd", _fake_backward)
def _backward(x: Tensor, weight: Tensor, bias: Optional[Tensor], seq_idx: Optional[Tensor],
              initial_states: Optional[Tensor], dout: Optional[Tensor], dfinal: Optional[Tensor], silu: bool,
              reverse: bool) -> List[Tensor]:
    grads = _fake_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse)
    run_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse, *grads)
    return grads


def _setup(ctx, inputs, output):
    x, weight, bias, seq_idx, initial_states, ctx.silu, ctx.reverse, _ = inputs
    ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dfinal=None):
    x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
    dout = zeros_like(x) if dout is None else dout
    dx, dweight, dbias, dinitial = _backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, ctx.silu, ctx.reverse)
    return (dx, dweight, None if bias is None else dbias, None, None if initial_states is None else dinitial, None, None, None)


def _fake_forward(x, weight, bias, seq_idx, initial_states, silu, reverse, want_final):
    return torch.empty_like(x), _empty_states(x, weight.shape[1] - 1) if want_final else None


@custom_op("causal_conv1d", _fake_forward, setup=_setup, backward=_gradients)
def _forward(x: Tensor, weight: Tensor, bias: Optional[Tensor], seq_idx: Optional[Tensor],
             initial_states: Optional[Tensor], silu: bool, reverse: bool, want_final: bool) -> Tuple[Tensor, Tensor]:
    out = torch.empty_like(x)
    final = _empty_states(x, weight.shape[1] - 1) if want_final else None
    run_forward(x, weight, bias, seq_idx, initial_states, silu, reverse, out, final)
    return out, final


_apply = differentiable("CausalConv1d", _forward, _setup, _gradients)


def causal_conv1d(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, activation=None,
                  reverse=False):
    """x (B, D, L), weight (D, W) -> out like x[, final states (B, D, W-1)]; any strides, any W."""
    silu = activation_code(activation) == 1
    if seq_idx is not None:
        assert initial_states is None, "initial_states must be None if seq_idx is not None"
        assert not return_final_states, "If seq_idx is not None, we don't return final_states_out"
    args = (x, weight, bias, seq_idx, initial_states, silu, reverse, return_final_states)
    result = (_apply if is_tracked(args[:5]) else _forward)(*args)
    return result if return_final_states else result[0]


def _refuse_update(x, conv_state, weight, bias, cache_seqlens, conv_state_indices):
    names = ("x", "conv_state", "weight", "bias", "cache_seqlens", "conv_state_indices")
    given = ", ".join("%s %s %s" % (n, tuple(t.shape), t.dtype) for n, t in
                      zip(names, (x, conv_state, weight, bias, cache_seqlens, conv_state_indices)) if t is not None)
    raise RuntimeError("causal_conv1d_update: x must be (B, D) or (B, D, L), conv_state (B or more, D, S >= W-1), weight (D, W), "
                       "bias (D), cache_seqlens and conv_state_indices (B) int32; got " + given)


def run_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out):
    """The plain call."""
    if not 2 <= x.dim() <= 3 or conv_state.dim() != 3 or weight.dim() != 2:
        _refuse_update(x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    b, d = x.shape[:2]
    n_states, dim, room = conv_state.shape
    if (dim != d or weight.shape[0] != d or room < weight.shape[1] - 1 or (bias is not None and bias.shape != (d,))
            or (conv_state_indices is None and n_states != b)
            or (cache_seqlens is not None and (cache_seqlens.dtype != torch.int32 or cache_seqlens.shape != (b,)))
            or (conv_state_indices is not None and (conv_state_indices.dtype != torch.int32 or conv_state_indices.shape != (b,)))):
        _refuse_update(x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    _UPDATE.run(place(x, conv_state, weight, bias, cache_seqlens, conv_state_indices), 0, B=b, D=d,
                L=x.shape[2] if x.dim() == 3 else 1, W=weight.shape[1], S=room, n_states=n_states, activation=silu,
                x=x, conv_state=conv_state, weight=weight, bias=bias, cache_seqlens=cache_seqlens,
                conv_state_indices=conv_state_indices, out=out)


def _fake_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    return torch.empty_like(x)


@custom_op("causal_conv1d_update", _fake_update, mutates=("conv_state",))
def _update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Optional[Tensor], silu: bool,
            cache_seqlens: Optional[Tensor], conv_state_indices: Optional[Tensor]) -> Tensor:
    out = torch.empty_like(x)
    run_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    return out


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """One or more new tokens against a running state, which is updated in place."""
    return _update(x, conv_state, weight, bias, activation_code(activation) == 1, cache_seqlens, conv_state_indices)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """x (total, D), cu_seqlens (S+1) -> (S, D, state_len): each sequence's last inputs, zeros on the left."""
    if x.dim() != 2 or cu_seqlens.dim() != 1:
        raise RuntimeError("causal_conv1d_varlen_states: x must be (total, D) and cu_seqlens (S+1), got %s and %s"
                           % (tuple(x.shape), tuple(cu_seqlens.shape)))
    total, d = x.shape
    if cu_seqlens.dtype != torch.int32:
        cu_seqlens = cu_seqlens.to(torch.int32)
    n = cu_seqlens.shape[0] - 1
    states = torch.empty(n, state_len, d, dtype=x.dtype, device=x.device).transpose(1, 2)
    _VARLEN.run(place(x, cu_seqlens), 0, S=n, D=d, total=total, state_len=state_len, x=x, cu_seqlens=cu_seqlens,
                states=states)
    return states
