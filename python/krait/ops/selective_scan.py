"""Mamba-1's selective scan: forward and backward passes, real and complex, packed sequences, both time directions."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import Call, Operator, signer
from .._torch import call_after, custom_op, differentiable, is_traced, is_wide, layout, zeros_like

ONE_GROUP = (1, 4)  # the group axis of B and C may be omitted if there is one group
_INPUTS = "u delta A Bmat Cmat Dvec z delta_bias initial_state seq_idx cu_seqlens A_reverse "
FORWARD = Operator("selective_scan", _INPUTS + "out last_state", Bmat=ONE_GROUP, Cmat=ONE_GROUP)
BACKWARD = Operator("selective_scan_bwd", _INPUTS + "dout dlast_state du ddelta dA dB dC dDvec dz ddelta_bias dinitial_state dA_reverse", Bmat=ONE_GROUP, Cmat=ONE_GROUP, dB=ONE_GROUP, dC=ONE_GROUP)
FORWARD_KEEPING = Operator("selective_scan", _INPUTS + "out last_state states", Bmat=ONE_GROUP, Cmat=ONE_GROUP)
BACKWARD_OF_KEPT = Operator("selective_scan_bwd", " ".join((*BACKWARD.views, "states")), Bmat=ONE_GROUP, Cmat=ONE_GROUP, dB=ONE_GROUP, dC=ONE_GROUP)
_signature = signer(12)
_SOFTPLUS, _B_CONSTANT, _C_CONSTANT, _REVERSE, _BOTH = 1, 2, 4, 8, 16  # KRAIT_SCAN_*


def scan_flags(B, C, softplus, reverse, A_reverse):
    """B, C: the matrices, None if they come from a projection."""
    return ((_SOFTPLUS if softplus else 0) | (_B_CONSTANT if B is not None and B.dim() == 2 else 0)
            | (_C_CONSTANT if C is not None and C.dim() == 2 else 0) | (_REVERSE if reverse else 0) | (0 if A_reverse is None else _BOTH))


def _n_sequences(cu_seqlens):
    return 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1


def run_forward(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, softplus, reverse, out, last):
    """The plain call, into the given outputs."""
    FORWARD.run((u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, out, last),
                 scan_flags(B, C, softplus, reverse, A_reverse))


def run_backward(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, dout, dlast, softplus, reverse,
                 du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial, dA_reverse):
    """The plain call, into the given gradients (None: not computed)."""
    run_backward_call(Call(BACKWARD), (u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, dout, dlast),
                      (du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial, dA_reverse), softplus, reverse)


def run_backward_call(call, inputs, grads, softplus, reverse):
    tensors = (*inputs, *grads)
    if call.words is None:
        u, _, A, B, C, *_, cu_seqlens, A_reverse, _, _ = inputs
        call.pack(tensors, scan_flags(B, C, softplus, reverse, A_reverse))
    call.run(tensors)


def _fake_backward(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, dout, dlast, softplus, reverse):
    return [None if t is None else torch.empty_like(t) for t in (u, delta, A, B, C, D, z, delta_bias, initial_state, A_reverse)]


@custom_op("selective_scan_bwd", _fake_backward)
def _backward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor], z: Optional[Tensor],
              delta_bias: Optional[Tensor], initial_state: Optional[Tensor], seq_idx: Optional[Tensor],
              cu_seqlens: Optional[Tensor], A_reverse: Optional[Tensor], dout: Optional[Tensor], dlast: Optional[Tensor],
              softplus: bool, reverse: bool) -> List[Tensor]:
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, dout, dlast, softplus, reverse)
    grads = _fake_backward(*inputs)
    run_backward(*inputs, *grads)
    return grads


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:12])
    ctx.softplus, ctx.reverse = inputs[12:14]
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlast=None):
    tensors = ctx.saved_tensors
    dout = zeros_like(tensors[0]) if dout is None else dout
    inputs, options = (*tensors, dout, dlast), (ctx.softplus, ctx.reverse)
    call = call_after(ctx, BACKWARD, (dout.stride(), layout(dlast)))
    if call is None:
        grads = _backward(*inputs, *options)
    else:
        grads = _fake_backward(*inputs, *options)
        run_backward_call(call, inputs, grads, *options)
    *grads, dA_reverse = [None if t is None else g for t, g in zip((*tensors[:9], tensors[11]), grads)]
    return (*grads, None, None, dA_reverse, None, None, None)


def _fake_forward(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, softplus, reverse, want_last):
    last = None
    if want_last:
        last = torch.empty(_n_sequences(cu_seqlens) or u.shape[0], A.shape[0], A.shape[1], dtype=A.dtype, device=A.device)
    return torch.empty_like(u), last


def run_call(call, *inputs):
    out, last = _fake_forward(*inputs)
    tensors = (*inputs[:12], out, last)
    if call.words is None:
        u, _, A, B, C, *_, cu_seqlens, A_reverse, softplus, reverse, _ = inputs
        call.pack(tensors, scan_flags(B, C, softplus, reverse, A_reverse))
    call.run(tensors)
    return out, last


@custom_op("selective_scan", _fake_forward, setup=_setup, backward=_gradients, composed=composed.selective_scan)
def _forward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor], z: Optional[Tensor],
             delta_bias: Optional[Tensor], initial_state: Optional[Tensor], seq_idx: Optional[Tensor],
             cu_seqlens: Optional[Tensor], A_reverse: Optional[Tensor], softplus: bool, reverse: bool,
             want_last: bool) -> Tuple[Tensor, Tensor]:
    return run_call(Call(FORWARD), u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, softplus, reverse, want_last)


_apply = differentiable("SelectiveScan", run_call, _setup, _gradients)


def as_parameter(t, dtype):
    """In the states' type, conjugates resolved."""
    t = t if t.dtype is dtype else t.to(dtype)
    return t if dtype is torch.float32 else t.resolve_conj()


def _in_kind(u, delta, A, B, C, D, z, delta_bias, initial_states, seq_idx, cu_seqlens, A_reverse):
    """The tensors in the operator's form; raises for unsupported ones."""
    real = torch.float64 if is_wide(u) else torch.float32
    kind = torch.promote_types(real, torch.complex64) if A.is_complex() else real
    A, *others = [t if t is None else as_parameter(t, kind) for t in (A, initial_states, A_reverse)]
    B, C = [as_parameter(t, kind) if t.dim() == 2 else t for t in (B, C)]
    D, delta_bias = [t if t is None else as_parameter(t, real) for t in (D, delta_bias)]
    tensors = u, delta, A, B, C, D, z, delta_bias, others[0], seq_idx, cu_seqlens, others[1]
    if not is_traced():
        FORWARD.check(tensors, scan_flags(B, C, False, False, others[1]))
    return tensors


def selective_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False,
                   initial_states=None, seq_idx=None, cu_seqlens=None, reverse=False, A_reverse=None):
    """out like u[, last state (B or sequences, D, N)]; gradients of all floating-point arguments and the last state.
    A_reverse: a second scan backward in time with it is added before D u and the gate."""
    tensors = (u, delta, A, B, C, D, z, delta_bias, initial_states, seq_idx, cu_seqlens, A_reverse)
    options = (bool(delta_softplus), bool(reverse), bool(return_last_state))
    if is_traced(u):
        result = _forward(*_in_kind(*tensors), *options)
        return result if return_last_state else result[0]
    key = _signature(tensors, options)
    call = FORWARD.known.get(key)
    if call is None:
        call, tensors = FORWARD.keep(_signature, options, _in_kind(*tensors))
    result = (_apply if call.has_gradients and is_grad_enabled() else run_call)(call, *tensors, *options)
    return result if return_last_state else result[0]
