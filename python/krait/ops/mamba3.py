"""The scan of Mamba 3 and its step (equation: docs/OPS.md): heads of one input and output each (SISO), or of several ranks (MIMO).

Forward, and backward including the final states; packed sequences, either direction of time."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import Call, Operator, refuse_negative_bit, signer
from .._torch import call_after, custom_op, differentiable, is_traced, layout

_PARAMETERS = (6, 7, 9, 11, 12, 13, 14)  # whose gradients are float32
INPUTS = ("x log_decay dt trap Bmat Cmat B_bias C_bias angles Dvec z mimo_x mimo_z mimo_o norm_weight "
          "initial_angles initial_states initial_B initial_x cu_seqlens ")
FORWARD = Operator("mamba3", INPUTS + "out final_angles final_states final_B final_x")
BACKWARD = Operator("mamba3_bwd", INPUTS + "dout dfinal_angles dfinal_states dfinal_B dfinal_x dx dlog_decay ddt dtrap dB dC dB_bias dC_bias dangles dDvec dz "
                    "dmimo_x dmimo_z dmimo_o dnorm_weight dinitial_angles dinitial_states dinitial_B dinitial_x")
STEP = Operator("mamba3_step", "angle_state state B_state x_state x log_decay dt trap Bmat Cmat B_bias C_bias angles Dvec z mimo_x mimo_z mimo_o norm_weight "
                "state_batch_indices out")
_signature, _step_signature = signer(20), signer(20)
_HALVES, _REVERSE = 1, 2  # KRAIT_MAMBA3_*


def _flags(halves, reverse):
    return (_HALVES if halves else 0) | (_REVERSE if reverse else 0)


def _over_heads(angles, heads):
    """One angle for all heads, as the operator takes it: stride 0 along them."""
    return angles.expand(-1, -1, heads, -1) if angles.shape[2] == 1 else angles


def _with_angles(tensors, *places):
    heads = tensors[0].shape[2]
    return [_over_heads(t, heads) if i in places and t is not None else t for i, t in enumerate(tensors)]


def _fake_backward(*inputs):
    return [None if t is None else torch.empty_like(t, dtype=torch.float32 if i in _PARAMETERS else t.dtype) for i, t in enumerate(inputs[:19])]


def _run_backward(call, *inputs):
    grads = _fake_backward(*inputs)
    tensors = (*_with_angles(inputs[:25], 8), *_with_angles(grads, 8))
    if call.words is None:
        halves, reverse, eps = inputs[25:]
        call.pack(tensors, _flags(halves, reverse), eps=eps)
    call.run(tensors)
    return grads


@custom_op("mamba3_bwd", _fake_backward)
def _backward(x: Tensor, log_decay: Tensor, dt: Tensor, trap: Tensor, B: Tensor, C: Tensor, B_bias: Tensor, C_bias: Tensor, angles: Tensor, D: Optional[Tensor],
              z: Optional[Tensor], mimo_x: Optional[Tensor], mimo_z: Optional[Tensor], mimo_o: Optional[Tensor], norm_weight: Optional[Tensor],
              initial_angles: Optional[Tensor], initial_states: Optional[Tensor], initial_B: Optional[Tensor], initial_x: Optional[Tensor],
              cu_seqlens: Optional[Tensor], dout: Optional[Tensor], dfinal_angles: Optional[Tensor], dfinal_states: Optional[Tensor],
              dfinal_B: Optional[Tensor], dfinal_x: Optional[Tensor], halves: bool, reverse: bool, eps: float) -> List[Tensor]:
    return _run_backward(Call(BACKWARD), x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, initial_angles,
                         initial_states, initial_B, initial_x, cu_seqlens, dout, dfinal_angles, dfinal_states, dfinal_B, dfinal_x, halves, reverse, eps)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:20])
    ctx.options = inputs[20:23]
    ctx.set_materialize_grads(False)


def _gradients(ctx, *douts):
    tensors = ctx.saved_tensors
    call = call_after(ctx, BACKWARD, tuple([layout(d) for d in douts]))
    inputs = (*tensors, *douts, *ctx.options)
    grads = _backward(*inputs) if call is None else _run_backward(call, *inputs)
    return (*[None if t is None else g.to(t.dtype) for t, g in zip(tensors, grads)], None, None, None, None, None)


def _fake_forward(x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, initial_angles, initial_states, initial_B,
                  initial_x, cu_seqlens, halves, reverse, eps, want_final):
    b, length, h, p = x.shape
    ranks, n, sequences = B_bias.shape[1], B.shape[3], b if cu_seqlens is None else cu_seqlens.shape[0] - 1
    out = x.new_empty(b, length, h if mimo_o is not None else ranks * h, p)
    if not want_final:
        return out, None, None, None, None
    single = {"dtype": torch.float32}
    return (out, x.new_empty(sequences, h, angles.shape[3], **single), x.new_empty(sequences, h, p, n, **single),
            x.new_empty(sequences, ranks, h, n, **single), x.new_empty(sequences, h, p))


def _run_forward(call, *inputs):
    outputs = _fake_forward(*inputs)
    tensors = (*_with_angles(inputs[:20], 8), *outputs)
    if call.words is None:
        halves, reverse, eps = inputs[20:23]
        call.pack(tensors, _flags(halves, reverse), eps=eps)
    call.run(tensors)
    return outputs


@custom_op("mamba3", _fake_forward, setup=_setup, backward=_gradients, composed=composed.mamba3)
def _forward(x: Tensor, log_decay: Tensor, dt: Tensor, trap: Tensor, B: Tensor, C: Tensor, B_bias: Tensor, C_bias: Tensor, angles: Tensor, D: Optional[Tensor],
             z: Optional[Tensor], mimo_x: Optional[Tensor], mimo_z: Optional[Tensor], mimo_o: Optional[Tensor], norm_weight: Optional[Tensor],
             initial_angles: Optional[Tensor], initial_states: Optional[Tensor], initial_B: Optional[Tensor], initial_x: Optional[Tensor],
             cu_seqlens: Optional[Tensor], halves: bool, reverse: bool, eps: float, want_final: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _run_forward(Call(FORWARD), x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, initial_angles,
                        initial_states, initial_B, initial_x, cu_seqlens, halves, reverse, eps, want_final)


_apply = differentiable("Mamba3", _run_forward, _setup, _gradients)


def as_offsets(cu_seqlens):
    """Of any type of whole numbers; others stay as they are, and the operator refuses them."""
    return cu_seqlens if cu_seqlens.is_floating_point() or cu_seqlens.is_complex() else cu_seqlens.to(torch.int32)


def _in_kind(tensors, eps):
    """The tensors in the operator's form; raises on those that do not fit."""
    tensors = (*tensors[:19], None if tensors[19] is None else as_offsets(tensors[19]))
    if not is_traced():
        FORWARD.check(_with_angles(tensors, 8), eps=eps)
    return tensors


def mamba3(x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D=None, z=None, mimo_x=None, mimo_z=None, mimo_o=None, norm_weight=None, initial_states=None,
           cu_seqlens=None, halves=False, reverse=False, eps=1e-5, return_final_states=False):
    """x (B, L, H, P), log_decay, dt and trap (B, L, H), B and C (B, L, R G, N) with rows r G + g, their biases (H, R, N), angles (B, L, H, M) or (B, L, 1, M),
    D (H), z like x, mimo_* (H, R, P), norm_weight (H, P) -> out (B, L, H, P), without mimo_o (B, L, R H, P); with return_final_states (out, angles
    (n, H, M), states (n, H, P, N), B (n, R, H, N), all float32, x (n, H, P)), where n is B, or the sequences of cu_seqlens (n + 1) for a batch of 1.

    initial_states: four such tensors. halves: pair m of N is (m, m + N / 2), not (2 m, 2 m + 1)."""
    states = (None,) * 4 if initial_states is None else tuple(initial_states)
    tensors = (x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, *states, cu_seqlens)
    options = (bool(halves), bool(reverse), float(eps), bool(return_final_states))
    if is_traced(x):
        results = _forward(*_in_kind(tensors, options[2]), *options)
    else:
        key = _signature(tensors, options)
        call = FORWARD.known.get(key)
        if call is None:
            call, tensors = FORWARD.keep(_signature, options, _in_kind(tensors, options[2]))
        results = (_apply if call.has_gradients and is_grad_enabled() else _run_forward)(call, *tensors, *options)
    return results if return_final_states else results[0]


def mamba3_step(angle_state, state, B_state, x_state, x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D=None, z=None, mimo_x=None, mimo_z=None, mimo_o=None,
                norm_weight=None, state_batch_indices=None, halves=False, eps=1e-5):
    """One token for each of B sequences; the four states (n, ...) are updated in place. Tensors as for mamba3, without L -> out (B, H, P) or (B, R H, P)."""
    tensors = (angle_state, state, B_state, x_state, x, log_decay, dt, trap, B, C, B_bias, C_bias, angles.expand(-1, x.shape[1], -1), D, z, mimo_x, mimo_z, mimo_o,
               norm_weight, None if state_batch_indices is None else state_batch_indices.to(torch.int32))
    options = (bool(halves), float(eps))
    rows = x.shape[1] * (1 if mimo_o is not None else B_bias.shape[1])
    out = x.new_empty(x.shape[0], rows, x.shape[2])
    key = _step_signature(tensors, options)
    call = STEP.known.get(key)
    if call is None:
        refuse_negative_bit("mamba3_step", angle_state, state, B_state, x_state)
        call, tensors = STEP.keep(_step_signature, options, tensors)
    if call.words is None:
        call.pack((*tensors, out), _flags(halves, False), eps=options[1])
    call.run((*tensors, out))
    return out
