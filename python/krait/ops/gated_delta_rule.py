"""The gated delta rule (equation: docs/OPS.md), also with a decay for each key's feature; its gradient is that of the same in plain torch, by chunks."""

from typing import Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import Call, Operator, signer
from .._torch import custom_op, differentiable, is_traced

FORWARD = Operator("gated_delta_rule", "q k v a b A dt_bias key_decay initial_states out final_states")
_signature = signer(9)
_KEYS_AS_GIVEN, _BETA_AS_GIVEN = 1, 2  # KRAIT_DELTA_*


def _differentiate(tensors, douts, options):
    """Gradients of `tensors` (None: none) by torch's own operators, also where these are recorded."""
    with torch.enable_grad():
        leaves = [t if t is None else t.detach().requires_grad_() for t in tensors]
        results = composed.gated_delta_rule(*leaves, *options, douts[1] is not None)
        pairs = [(result, d) for result, d in zip(results, douts) if d is not None]
        given = [t for t in leaves if t is not None]
        found = dict(zip(map(id, given), torch.autograd.grad([result for result, _ in pairs], given, [d for _, d in pairs], allow_unused=True)))
    return [found.get(id(t)) for t in leaves]


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:9])
    ctx.options = inputs[9:13]
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dfinal=None):
    if dout is None and dfinal is None:
        return (None,) * 14
    return (*_differentiate(ctx.saved_tensors, (dout, dfinal), ctx.options), None, None, None, None, None)


def _fake_forward(q, k, v, a, b, A, dt_bias, key_decay, initial_states, normalize, sigmoid, beta_scale, eps, want_final):
    final = q.new_empty(q.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=torch.float32) if want_final else None
    return v.new_empty(v.shape), final


def _run_forward(call, *inputs):
    outputs = _fake_forward(*inputs)
    tensors = (*inputs[:9], *outputs)
    if call.words is None:
        normalize, sigmoid, beta_scale, eps = inputs[9:13]
        call.pack(tensors, (0 if normalize else _KEYS_AS_GIVEN) | (0 if sigmoid else _BETA_AS_GIVEN), eps=eps, beta_scale=beta_scale)
    call.run(tensors)
    return outputs


@custom_op("gated_delta_rule", _fake_forward, setup=_setup, backward=_gradients, composed=composed.gated_delta_rule)
def _forward(q: Tensor, k: Tensor, v: Tensor, a: Optional[Tensor], b: Tensor, A: Optional[Tensor], dt_bias: Optional[Tensor], key_decay: Optional[Tensor],
             initial_states: Optional[Tensor], normalize: bool, sigmoid: bool, beta_scale: float, eps: float, want_final: bool) -> Tuple[Tensor, Tensor]:
    return _run_forward(Call(FORWARD), q, k, v, a, b, A, dt_bias, key_decay, initial_states, normalize, sigmoid, beta_scale, eps, want_final)


_apply = differentiable("GatedDeltaRule", _run_forward, _setup, _gradients)


def _in_kind(tensors):
    """The tensors in the operator's form; raises on those that do not fit."""
    kind = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
    tensors = tuple([t.to(kind) if i in (5, 6, 8) and t is not None else t for i, t in enumerate(tensors)])
    if not is_traced(tensors[0]):
        FORWARD.check(tensors)
    return tensors


def gated_delta_rule(q, k, v, a, b, A=None, dt_bias=None, key_decay=None, initial_states=None, normalize=False, sigmoid=False, beta_scale=1.0, eps=1e-6,
                     return_final_states=False):
    """q and k (B, L, Hk, Dk), v (B, L, H, Dv), a or None and b (B, L, H), A and dt_bias (H), key_decay (B, L, H, Dk), initial_states (B, H, Dk, Dv) ->
    out like v; with return_final_states (out, states float32). Decays are exp(a), or with A exp(A softplus(a + dt_bias)), times exp(key_decay); beta is
    beta_scale b, or with sigmoid beta_scale sigmoid(b); normalize: queries and keys of length one. Queries are divided by the root of Dk."""
    tensors, options = (q, k, v, a, b, A, dt_bias, key_decay, initial_states), (bool(normalize), bool(sigmoid), float(beta_scale), float(eps), bool(return_final_states))
    if is_traced(q):
        results = _forward(*_in_kind(tensors), *options)
    else:
        key = _signature(tensors, options)
        call = FORWARD.known.get(key)
        if call is None:
            tensors = _in_kind(tensors)
            call, tensors = FORWARD.keep(_signature, options, tensors)
        results = (_apply if call.has_gradients and is_grad_enabled() else _run_forward)(call, *tensors, *options)
    return results if return_final_states else results[0]
