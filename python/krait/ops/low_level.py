"""The functions of upstream's extension modules below autograd: tensors in, tensors out. The drop-in modules wrap
these and depend only on krait, so a fork's own causal_conv1d or mamba_ssm can use them."""

import torch

from .._call import Call
from .attention import BACKWARD as _ATTENTION_BWD, attention as _attention, attention_with_cache as _attention_with_cache, new_rng as _new_rng
from .attention import run_backward as _attention_run_backward, tail as _tail, window as _window
from .causal_conv1d import run_backward as _conv_backward, run_forward as _conv_forward, run_update as _conv_update
from .probabilities import attention_probabilities as _probabilities
from .selective_scan import run_backward as _scan_backward, run_forward as _scan_forward


def conv_fwd(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    out = torch.empty_like(x)
    _conv_forward(x, weight, bias, seq_idx, initial_states, silu_activation, False, out, final_states_out)
    return out


def conv_bwd(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, silu_activation):
    dx = torch.empty_like(x) if dx is None else dx
    dweight, dbias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    dinitial = torch.empty_like(initial_states) if return_dinitial_states and initial_states is not None else None
    _conv_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal_states, silu_activation, False, dx, dweight, dbias, dinitial)
    return dx, dweight, dbias, dinitial


def conv_update(x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices):
    out = torch.empty_like(x)
    rows, out3 = (x.unsqueeze(-1), out.unsqueeze(-1)) if x.dim() == 2 else (x, out)
    _conv_update(rows, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices, out3)
    return out


def scan_fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """-> [out, x] or, with z, [out, x, out_z]; x (B, D, 1, 2 N) only holds the last state, at x[:, :, -1, 1::2] where callers read it."""
    last = torch.empty(u.shape[0], *A.shape, dtype=A.dtype, device=u.device)
    out = torch.empty_like(u)
    _scan_forward(u, delta, A, B, C, D, None, delta_bias, None, None, None, None, delta_softplus, False, out, last)
    x = torch.stack([torch.zeros_like(last), last], dim=-1).flatten(-2).unsqueeze(2)
    if z is None:
        return [out, x]
    out_z = torch.empty_like(u)
    _scan_forward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, delta_softplus, False, out_z, None)
    return [out, x, out_z]


def scan_bwd(u, delta, A, B, C, D, z, delta_bias, dout, dz, delta_softplus):
    """-> [du, ddelta, dA, dB, dC, dD, ddelta_bias[, dz]]."""
    du, ddelta, dA, dB, dC = [torch.empty_like(t) for t in (u, delta, A, B, C)]
    dD, dbias = [None if t is None else torch.empty_like(t) for t in (D, delta_bias)]
    if z is not None and dz is None:
        dz = torch.empty_like(z)
    _scan_backward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, dout, None, delta_softplus, False, du, ddelta, dA, dB,
                   dC, dD, None if z is None else dz, dbias, None, None)
    return [du, ddelta, dA, dB, dC, dD, dbias] + ([] if z is None else [dz])


def _spread(delta, delta_bias, dim):
    """In VMamba several channels may share one delta."""
    each = dim // delta.shape[1]
    return [t if t is None or each == 1 else t.repeat_interleave(each, dim=-2 if t is delta else 0) for t in (delta, delta_bias)]


def oflex_fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1, out_float=True):
    """scan_fwd with VMamba's signature; float32 output with out_float."""
    delta, delta_bias = _spread(delta, delta_bias, u.shape[1])
    return scan_fwd(u.float() if out_float else u, delta, A, B, C, D, None, delta_bias, delta_softplus)


def oflex_bwd(u, delta, A, B, C, D, delta_bias, dout, x, delta_softplus, nrows=1):
    """Gradients in their inputs' types, from a dout in u's type or float32."""
    wide, wide_bias = _spread(delta, delta_bias, u.shape[1])
    du, ddelta, *others, dbias = scan_bwd(u.to(dout.dtype), wide, A, B, C, D, None, wide_bias, dout, None, delta_softplus)
    if wide is not delta:
        ddelta = ddelta.unflatten(1, (delta.shape[1], -1)).sum(2)
        dbias = dbias if dbias is None else dbias.unflatten(0, (delta.shape[1], -1)).sum(1)
    return [du.to(u.dtype), ddelta, *others, dbias]


def ndstate_fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1):
    """VMamba's form for one state: A (D), B and C (B, G, L)."""
    return scan_fwd(u, delta, A.unsqueeze(-1), B.unsqueeze(2), C.unsqueeze(2), D, None, delta_bias, delta_softplus)


def ndstate_bwd(u, delta, A, B, C, D, delta_bias, dout, x, delta_softplus, nrows=1):
    du, ddelta, dA, dB, dC, dD, dbias = scan_bwd(u, delta, A.unsqueeze(-1), B.unsqueeze(2), C.unsqueeze(2), D, None, delta_bias, dout, None, delta_softplus)
    return [du, ddelta, dA.squeeze(-1), dB.squeeze(2), dC.squeeze(2), dD, dbias]


# ---- flash_attn_2_cuda ------------------------------------------------------------------------------------------------
def _attention_options(q, scale, causal, left, right, n_keys, softcap, dropout, deterministic=True, max_q=0, max_k=0):
    left, right = _window((left, right), causal, n_keys)
    return (float(scale or 0.0), float(softcap), float(dropout), left, right, not deterministic, int(max_q), int(max_k), True)


def _attention_forward(tensors, options, out, return_softmax):
    q = tensors[0]
    rng = _new_rng(q) if options[2] > 0.0 else q.new_zeros(2, dtype=torch.int64)
    got, lse = _attention(*tensors[:3], cu_seqlens_q=tensors[3], cu_seqlens_k=tensors[4], seqused_k=tensors[5], leftpad_k=tensors[6], block_table=tensors[7],
                          alibi_slopes=tensors[8], rng=rng, scale=options[0], softcap=options[1], dropout=options[2], window=options[3:5], max_q=options[6],
                          max_k=options[7], want_lse=True)
    if out is not None:
        got = out.copy_(got)
    shown = None
    if return_softmax and options[2] > 0.0 and tensors[6] is None:
        shown = _probabilities(*tensors[:3], cu_seqlens_q=tensors[3], cu_seqlens_k=tensors[4], seqused_k=tensors[5], block_table=tensors[7], rng=rng,
                               dropout=options[2], scale=options[0], softcap=options[1], window=options[3:5], alibi_slopes=tensors[8], max_q=options[6],
                               max_k=options[7])
    return [got, lse, shown if shown is not None else q.new_empty(0), rng]


def _refuse_generator(gen):
    if gen is not None:
        raise RuntimeError("attention: the `generator` argument is no longer supported: seed torch's generator of the device")


def attention_fwd(q, k, v, out, alibi_slopes, p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap, return_softmax, gen=None):
    """-> [out, log-sum-exp, probabilities or empty, the generator's state (2) int64]."""
    _refuse_generator(gen)
    options = _attention_options(q, softmax_scale, is_causal, window_size_left, window_size_right, k.shape[1], softcap, p_dropout)
    with torch.no_grad():
        return _attention_forward((q, k, v, None, None, None, None, None, alibi_slopes), options, out, return_softmax)


def attention_varlen_fwd(q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes, max_seqlen_q, max_seqlen_k, p_dropout,
                         softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, softcap, return_softmax, gen=None, num_splits=0):
    _refuse_generator(gen)
    if num_splits > 1:
        raise RuntimeError("attention: num_splits > 1 is not supported for packed sequences: krait splits the work itself, pass 0")
    options = _attention_options(q, softmax_scale, is_causal, window_size_left, window_size_right, max_seqlen_k, softcap, p_dropout, True, max_seqlen_q,
                                 max_seqlen_k)
    if block_table is not None:
        seqused_k = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).to(torch.int32) if seqused_k is None else seqused_k
        cu_seqlens_k = None
    with torch.no_grad():
        return _attention_forward((q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes), options, out, return_softmax)


def _attention_backward(dout, inputs, options, out, lse, grads, rng_state):
    q = inputs[0]
    rng = rng_state.view(torch.int32) if options[2] > 0.0 else None
    grads = [torch.empty_like(t) if g is None else g for t, g in zip(inputs, grads)]
    behind = _tail(q, inputs[3]), _tail(inputs[1], inputs[4])
    if any(behind):
        n, m = q.shape[0] - behind[0], inputs[1].shape[0] - behind[1]
        for g, end in zip(grads, (n, m, m)):
            g[end:] = 0
        parts = (dout[:n], (q[:n], inputs[1][:m], inputs[2][:m], *inputs[3:]), options, out[:n], lse[:, :n], [g[:end] for g, end in zip(grads, (n, m, m))])
        delta = _attention_backward(*parts, rng_state)[3]
        return [*grads, torch.nn.functional.pad(delta, (0, behind[0]))]
    _attention_run_backward(Call(_ATTENTION_BWD), (*inputs, rng), options, out, lse, dout, None, (*grads, None))
    delta = (dout.float() * out.float()).sum(-1)
    return [*grads, delta.transpose(-1, -2).contiguous()]


def attention_bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap,
                  deterministic, gen=None, rng_state=None):
    """-> [dq, dk, dv, sums of dout * out (B, H, Sq) float32]."""
    _refuse_generator(gen)
    options = _attention_options(q, softmax_scale, is_causal, window_size_left, window_size_right, k.shape[1], softcap, p_dropout, deterministic)
    return _attention_backward(dout, (q, k, v, None, None, None, None, None, None, None, alibi_slopes, None), options, out, softmax_lse, (dq, dk, dv), rng_state)


def attention_varlen_bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, p_dropout,
                         softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, softcap, deterministic, gen=None, rng_state=None):
    _refuse_generator(gen)
    options = _attention_options(q, softmax_scale, is_causal, window_size_left, window_size_right, max_seqlen_k, softcap, p_dropout, deterministic,
                                 max_seqlen_q, max_seqlen_k)
    inputs = (q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, None, None, None, alibi_slopes, None)
    return _attention_backward(dout, inputs, options, out, softmax_lse, (dq, dk, dv), rng_state)


def attention_any_bwd(dout, q, k, v, out, lse, grads, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_q, max_k, scale, causal, left, right, softcap,
                      deterministic):
    """Dense or packed, with the number of tokens used of each sequence -> as attention_bwd."""
    options = _attention_options(q, scale, causal, left, right, max_k or k.shape[1 if cu_seqlens_k is None else 0], softcap, 0.0, deterministic, max_q or 0, max_k or 0)
    return _attention_backward(dout, (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, None, None, None, None, None), options, out, lse, grads, None)


def attention_fwd_kvcache(q, kcache, vcache, k, v, seqlens_k, rotary_cos, rotary_sin, cache_batch_idx, leftpad_k, block_table, alibi_slopes, out, softmax_scale,
                          is_causal, window_size_left, window_size_right, softcap, is_rotary_interleaved, num_splits):
    """-> [out, log-sum-exp]."""
    with torch.no_grad():
        got, lse = _attention_with_cache(q, kcache, vcache, k, v, rotary_cos, rotary_sin, seqlens_k, cache_batch_idx, leftpad_k, block_table, softmax_scale,
                                         is_causal, (window_size_left, window_size_right), softcap, is_rotary_interleaved, alibi_slopes, want_lse=True)
    return [got if out is None else out.copy_(got), lse]
