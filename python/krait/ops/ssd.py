"""The scan of Mamba 2 (SSD), per head h of P channels, with B and C of its group:

    d = clamp(softplus(dt + dt_bias)); S = exp(d A) S + d x (outer) B; y = S C + D x; y *= silu(z).

Forward, and backward including the final states; packed sequences, either direction of time."""

import math
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import ANY, Call, Operator, signer
from .._torch import allows_tf32, call_after, custom_op, differentiable, is_traced, is_wide, layout, zeros_like
from .selective_scan import as_parameter

_INPUTS = "x dt A Bmat Cmat Dvec z dt_bias initial_states seq_idx "
_ONE_OF_HEAD = (1, 2, ANY)  # D may lack the channel axis: one value per head
FORWARD = Operator("ssd", _INPUTS + "cu_seqlens out final_states varlen_states", Dvec=_ONE_OF_HEAD)
BACKWARD = Operator("ssd_bwd", _INPUTS + "dout dfinal_states dx ddt dA dB dC dDvec dz ddt_bias dinitial_states", Dvec=_ONE_OF_HEAD, dDvec=_ONE_OF_HEAD)
_signature = signer(11)
_SOFTPLUS, _REVERSE, _TF32 = 1, 2, 8  # KRAIT_SSD_*
LEAST = 2.0 ** -149  # stands for an upper limit of 0, which to the operator means no limit
_NO_LIMIT = (0.0, math.inf)


def _check_modes(x, seq_idx, cu_seqlens, dt_limit, return_varlen_states):
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise RuntimeError("ssd: dt_limit must be (low, high) with low <= high, got %s" % (tuple(dt_limit),))
    if cu_seqlens is not None and x.shape[0] != 1:
        raise RuntimeError("ssd: cu_seqlens needs a batch of 1 that holds all sequences, got a batch of %d" % x.shape[0])
    if return_varlen_states and cu_seqlens is None:
        raise RuntimeError("ssd: return_varlen_states needs cu_seqlens")


def time_steps(dt, dt_bias, dt_softplus, dt_limit):
    """d (B, L, H) in float32. Without limits, a step not from softplus is still clamped at 0, as in upstream's kernels."""
    d = dt.to(torch.float32)
    d = d if dt_bias is None else d + dt_bias.to(torch.float32)
    d = F.softplus(d) if dt_softplus else d
    return d if dt_softplus and tuple(dt_limit) == _NO_LIMIT else d.clamp(*dt_limit)


def limits(low, high):
    return dict(dt_min=low, dt_max=0.0 if high == math.inf else high or LEAST)


def flags_of(x, softplus, reverse):
    return (_SOFTPLUS if softplus else 0) | (_REVERSE if reverse else 0) | (_TF32 if allows_tf32(x) else 0)


def _fake_backward(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, dout, dfinal, softplus, reverse, low, high):
    grads = [None if t is None else torch.empty_like(t) for t in (x, dt, A, B, C, D, z, dt_bias, initial_states)]
    grads[5] = None if D is None else torch.empty_like(D, dtype=torch.float32)
    grads[7] = None if dt_bias is None else torch.empty_like(dt_bias, dtype=torch.float32)
    return grads


def _run_backward(call, *inputs):
    grads = _fake_backward(*inputs)
    tensors = (*inputs[:12], *grads)
    if call.words is None:
        softplus, reverse, low, high = inputs[12:]
        call.pack(tensors, flags_of(inputs[0], softplus, reverse), **limits(low, high))
    call.run(tensors)
    return grads


@custom_op("ssd_bwd", _fake_backward)
def _backward(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor], z: Optional[Tensor], dt_bias: Optional[Tensor],
              initial_states: Optional[Tensor], seq_idx: Optional[Tensor], dout: Tensor, dfinal: Optional[Tensor], softplus: bool, reverse: bool,
              low: float, high: float) -> List[Tensor]:
    return _run_backward(Call(BACKWARD), x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, dout, dfinal, softplus, reverse, low, high)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:10])
    ctx.options = inputs[11:15]
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dfinal=None, dvarlen=None):
    tensors = ctx.saved_tensors
    dout = zeros_like(tensors[0]) if dout is None else dout
    call = call_after(ctx, BACKWARD, (dout.stride(), layout(dfinal), allows_tf32(dout)))
    inputs = (*tensors, dout, dfinal, *ctx.options)
    grads = _backward(*inputs) if call is None else _run_backward(call, *inputs)
    grads = [None if t is None else g for t, g in zip(tensors, grads)]
    D, dt_bias = tensors[5], tensors[7]
    if D is not None:
        grads[5] = grads[5].to(D.dtype)
    if dt_bias is not None:
        grads[7] = grads[7].to(dt_bias.dtype)
    return (*grads, None, None, None, None, None, None, None, None)


def _fake_forward(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, softplus, reverse, low, high, want_final):
    b, _, h, p = x.shape
    final = x.new_empty(b, h, p, B.shape[3], dtype=torch.float32) if want_final else None
    varlen = None if cu_seqlens is None else x.new_empty(cu_seqlens.shape[0] - 1, h, p, B.shape[3], dtype=torch.float32)
    return torch.empty_like(x), final, varlen


def _run_forward(call, *inputs):
    outputs = _fake_forward(*inputs)
    tensors = (*inputs[:11], *outputs)
    if call.words is None:
        softplus, reverse, low, high = inputs[11:15]
        call.pack(tensors, flags_of(inputs[0], softplus, reverse), **limits(low, high))
    call.run(tensors)
    return outputs


@custom_op("ssd", _fake_forward, setup=_setup, backward=_gradients, composed=composed.ssd)
def _forward(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor], z: Optional[Tensor], dt_bias: Optional[Tensor],
             initial_states: Optional[Tensor], seq_idx: Optional[Tensor], cu_seqlens: Optional[Tensor], softplus: bool, reverse: bool, low: float,
             high: float, want_final: bool) -> Tuple[Tensor, Tensor, Tensor]:
    return _run_forward(Call(FORWARD), x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, softplus, reverse, low, high, want_final)


_apply = differentiable("Ssd", _run_forward, _setup, _gradients)


def _in_kind(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens):
    """The tensors in the operator's form; raises on those that do not fit."""
    if not is_traced():
        FORWARD.check((x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens))
    seq_idx, cu_seqlens = [None if t is None else t.to(torch.int32) for t in (seq_idx, cu_seqlens)]
    return x, dt, as_parameter(A, torch.float64 if is_wide(x) else torch.float32), B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens


def _call(tensors, options):
    """-> out, final states or None, varlen states or None (empty ones when traced)."""
    if is_traced(tensors[0]):
        return _forward(*_in_kind(*tensors), *options)
    known_by = (*options, allows_tf32(tensors[0]))
    key = _signature(tensors, known_by)
    call = FORWARD.known.get(key)
    if call is None:
        call, tensors = FORWARD.keep(_signature, known_by, _in_kind(*tensors))
    return (_apply if call.has_gradients and is_grad_enabled() else _run_forward)(call, *tensors, *options)


def _sequence_of(cu_seqlens, length):
    """(1, L): the index of each token's sequence; where empty sequences share its start, the last."""
    tokens = torch.arange(length, dtype=torch.int32, device=cu_seqlens.device)
    return (torch.searchsorted(cu_seqlens.to(torch.int32), tokens, right=True, out_int32=True) - 1)[None]


def _states_of_sequences(tensors, options, cu_seqlens, reverse):
    """The last state of each sequence on its own; the first continues from the initial states."""
    x, dt, A, B, C, D, z, dt_bias, initial_states = [None if t is None else t.detach() for t in tensors[:9]]
    softplus, _, low, high, _ = options
    if reverse:
        x, dt, B, C = [t.flip(1) for t in (x, dt, B, C)]
        cu_seqlens = x.shape[1] - cu_seqlens.flip(0)
    seq_idx = _sequence_of(cu_seqlens, x.shape[1])
    states = _call((x, dt, A, B, C, None, None, dt_bias, initial_states, seq_idx, cu_seqlens), (softplus, False, low, high, False))[2]
    return states.flip(0) if reverse else states


def ssd(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=_NO_LIMIT,
        return_final_states=False, return_varlen_states=False, chunk_size=None, reverse=False):
    """x (B, L, H, P), dt (B, L, H), A (H), B and C (B, L, G, N), D (H) or (H, P) -> out like x, final states (B, H, P, N) float32, varlen states
    (sequences, H, P, N) float32; the states are None where not requested.

    seq_idx (B, L) int32, nondecreasing: the state is reset where it changes; initial_states apply to index 0 only, and if the last index is negative the final
    state is 0. cu_seqlens (sequences + 1) int32, for a batch of 1, does not separate sequences: it selects the tokens of the varlen states, each
    that of its sequence alone, without gradient. chunk_size is a hint that does not affect results. reverse runs time backwards."""
    tensors = (x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx)
    _check_modes(x, seq_idx, cu_seqlens, dt_limit, return_varlen_states)
    options = (bool(dt_softplus), bool(reverse), float(dt_limit[0]), float(dt_limit[1]), bool(return_final_states))
    out, final, _ = _call((*tensors, None), options)
    varlen = _states_of_sequences(tensors, options, cu_seqlens, reverse) if return_varlen_states else None
    return out, final if return_final_states else None, varlen
