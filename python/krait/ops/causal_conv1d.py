"""Causal depthwise convolution: forward, backward, decode step, states of packed sequences."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import Call, Operator, refuse_negative_bit, signer
from .._torch import call_after, custom_op, differentiable, is_traced, layout, zeros_like

FORWARD = Operator("causal_conv1d", "x weight bias seq_idx initial_states out final_states")
BACKWARD = Operator("causal_conv1d_bwd", "x weight bias seq_idx initial_states dout dfinal_states dx dweight dbias dinitial_states")
_UPDATE = Operator("causal_conv1d_update", "x conv_state weight bias cache_seqlens conv_state_indices out", x=(2, 3), out=(2, 3))
_VARLEN = Operator("causal_conv1d_varlen_states", "x cu_seqlens states")
_signature, _update_signature, _varlen_signature = signer(5), signer(6), signer(2)
_REVERSE = 1  # KRAIT_CONV1D_REVERSE


def activation_code(activation):
    if activation is None:
        return 0
    if activation not in ("silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish, not %r" % (activation,))
    return 1


def _empty_states(x, width):
    """(B, D, width), channels-last in memory."""
    return torch.empty(x.shape[0], width, x.shape[1], dtype=x.dtype, device=x.device).transpose(1, 2)


def _checked(x, weight, bias, seq_idx, initial_states):
    """-> the tensors."""
    if not is_traced():
        FORWARD.check((x, weight, bias, seq_idx, initial_states))
    return x, weight, bias, seq_idx, initial_states


def _with_earlier(x, seq_idx, initial_states, reverse):
    """The earlier inputs of the first sequence as tokens before it -> x and seq_idx, both longer."""
    known, n = initial_states.to(x.dtype), initial_states.shape[2]
    if reverse:
        return torch.cat([x, known.flip(2)], dim=2), torch.cat([seq_idx, seq_idx[:, -1:].expand(-1, n)], dim=1)
    return torch.cat([known, x], dim=2), torch.cat([seq_idx[:, :1].expand(-1, n), seq_idx], dim=1)


def _without_earlier(longer, n, reverse):
    """-> the part of x, that of the initial states."""
    length = longer.shape[2] - n
    return (longer[..., :length], longer[..., length:].flip(2)) if reverse else (longer[..., n:], longer[..., :n])


def _run_backward_of_continued(x, weight, bias, seq_idx, initial_states, dout, silu, reverse, dx, dweight, dbias, dinitial):
    longer, indices = _with_earlier(x, seq_idx, initial_states, reverse)
    dlonger, _ = _with_earlier(dout, seq_idx, torch.zeros_like(initial_states), reverse)
    found = torch.empty_like(longer)
    run_backward(longer, weight, bias, indices, None, dlonger, None, silu, reverse, found, dweight, dbias, None)
    for target, part in zip((dx, dinitial), _without_earlier(found, initial_states.shape[2], reverse)):
        if target is not None:
            target.copy_(part)


def run_forward(x, weight, bias, seq_idx, initial_states, silu, reverse, out, final):
    """The plain call, into the given outputs."""
    if seq_idx is not None and initial_states is not None:
        longer, indices = _with_earlier(x, seq_idx, initial_states, reverse)
        found = torch.empty_like(longer)
        run_forward(longer, weight, bias, indices, None, silu, reverse, found, None)
        out.copy_(_without_earlier(found, initial_states.shape[2], reverse)[0])
        return
    FORWARD.run((x, weight, bias, seq_idx, initial_states, out, final), _REVERSE if reverse else 0, activation=silu)


def run_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse, dx, dweight, dbias, dinitial):
    """The plain call, into the given gradients (None: not computed)."""
    if seq_idx is not None and initial_states is not None:
        return _run_backward_of_continued(x, weight, bias, seq_idx, initial_states, dout, silu, reverse, dx, dweight, dbias, dinitial)
    run_backward_call(Call(BACKWARD), x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse, dx, dweight, dbias, dinitial)


def run_backward_call(call, x, weight, bias, seq_idx, initial_states, dout, dfinal, silu, reverse, dx, dweight, dbias, dinitial):
    tensors = (x, weight, bias, seq_idx, initial_states, dout, dfinal, dx, dweight, dbias, dinitial)
    if call.words is None:
        call.pack(tensors, _REVERSE if reverse else 0, activation=silu)
    call.run(tensors)


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
    inputs = x, weight, bias, seq_idx, initial_states, dout, dfinal, ctx.silu, ctx.reverse
    call = call_after(ctx, BACKWARD, (dout.stride(), layout(dfinal)))
    if call is None:
        dx, dweight, dbias, dinitial = _backward(*inputs)
    else:
        dx, dweight, dbias, dinitial = grads = _fake_backward(*inputs)
        run_backward_call(call, *inputs, *grads)
    return (dx, dweight, None if bias is None else dbias, None, None if initial_states is None else dinitial, None, None, None)


def _fake_forward(x, weight, bias, seq_idx, initial_states, silu, reverse, want_final):
    return torch.empty_like(x), _empty_states(x, weight.shape[1] - 1) if want_final else None


def run_call(call, x, weight, bias, seq_idx, initial_states, silu, reverse, want_final):
    out = torch.empty_like(x)
    final = _empty_states(x, weight.shape[1] - 1) if want_final else None
    tensors = (x, weight, bias, seq_idx, initial_states, out, final)
    if call.words is None:
        call.pack(tensors, _REVERSE if reverse else 0, activation=silu)
    call.run(tensors)
    return out, final


@custom_op("causal_conv1d", _fake_forward, setup=_setup, backward=_gradients, composed=composed.causal_conv1d)
def _forward(x: Tensor, weight: Tensor, bias: Optional[Tensor], seq_idx: Optional[Tensor],
             initial_states: Optional[Tensor], silu: bool, reverse: bool, want_final: bool) -> Tuple[Tensor, Tensor]:
    return run_call(Call(FORWARD), x, weight, bias, seq_idx, initial_states, silu, reverse, want_final)


_apply = differentiable("CausalConv1d", run_call, _setup, _gradients)


def _continued(x, weight, bias, seq_idx, initial_states, activation, reverse):
    """Packed sequences of which the first continues."""
    longer, indices = _with_earlier(x, seq_idx, initial_states, reverse)
    out = causal_conv1d(longer, weight, bias, indices, activation=activation, reverse=reverse)
    return _without_earlier(out, initial_states.shape[2], reverse)[0]


def causal_conv1d(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, activation=None,
                  reverse=False):
    """x (B, D, L), weight (D, W) -> out like x[, final states (B, D, W-1)]; any strides, any W."""
    if seq_idx is not None:
        assert not return_final_states, "If seq_idx is not None, we don't return final_states_out"
        if initial_states is not None:
            return _continued(x, weight, bias, seq_idx, initial_states, activation, reverse)
    tensors, options = (x, weight, bias, seq_idx, initial_states), (activation_code(activation) == 1, bool(reverse), bool(return_final_states))
    if is_traced(x):
        result = _forward(*_checked(*tensors), *options)
        return result if return_final_states else result[0]
    key = _signature(tensors, options)
    call = FORWARD.known.get(key)
    if call is None:
        call, tensors = FORWARD.keep(_signature, options, _checked(*tensors))
    result = (_apply if call.has_gradients and is_grad_enabled() else run_call)(call, *tensors, *options)
    return result if return_final_states else result[0]


def _checked_update(*tensors):
    if not is_traced():
        _UPDATE.check(tensors)
    return tensors


def run_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out):
    """The plain call, into a given output."""
    _UPDATE.run((x, conv_state, weight, bias, cache_seqlens, conv_state_indices, out), activation=silu)


def _fake_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    return torch.empty_like(x)


@custom_op("causal_conv1d_update", _fake_update, mutates=("conv_state",), composed=composed.causal_conv1d_update)
def _update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Optional[Tensor], silu: bool,
            cache_seqlens: Optional[Tensor], conv_state_indices: Optional[Tensor]) -> Tensor:
    out = torch.empty_like(x)
    run_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices, out)
    return out


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """One or more new tokens with a running state, updated in place."""
    silu = activation_code(activation) == 1
    if is_traced(x):
        return _update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)
    inputs = (x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    key = _update_signature(inputs, (silu,))
    call = _UPDATE.known.get(key)
    if call is None:
        refuse_negative_bit("causal_conv1d_update", conv_state)
        call, inputs = _UPDATE.keep(_update_signature, (silu,), _checked_update(*inputs))
    tensors = (*inputs, torch.empty_like(x))
    if call.words is None:
        call.pack(tensors, activation=silu)
    call.run(tensors)
    return tensors[6]


def _fake_varlen(x, cu_seqlens, state_len):
    return torch.empty(cu_seqlens.shape[0] - 1, state_len, x.shape[1], dtype=x.dtype, device=x.device).transpose(1, 2)


def _run_varlen(call, x, cu_seqlens, state_len):
    tensors = (x, cu_seqlens, _fake_varlen(x, cu_seqlens, state_len))
    if call.words is None:
        call.pack(tensors)
    call.run(tensors)
    return tensors[2]


@custom_op("causal_conv1d_varlen_states", _fake_varlen)
def _varlen(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    return _run_varlen(Call(_VARLEN), x, cu_seqlens, state_len)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """x (total, D), cu_seqlens (S+1) -> (S, D, state_len): each sequence's last inputs, zeros on the left."""
    traced = is_traced()
    key = None if traced else _varlen_signature((x, cu_seqlens), (state_len,))
    call = None if traced else _VARLEN.known.get(key)
    if call is None:
        if not traced:
            _VARLEN.check((x, cu_seqlens))
        cu_seqlens = cu_seqlens.to(torch.int32)
        if traced:
            return _varlen(x, cu_seqlens, state_len)
        call, (x, cu_seqlens) = _VARLEN.keep(_varlen_signature, (state_len,), (x, cu_seqlens))
    return _run_varlen(call, x, cu_seqlens, state_len)
