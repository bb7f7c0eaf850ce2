"""Each chunk's contribution to Mamba-2's state, in plain torch. c chunks of q tokens: dt and its sums are (B, H, c, q)."""

import math

import torch
import torch.nn.functional as F

from krait._function import function_by_name, gradients
from krait.ops.ssd import time_steps


def split_chunks(t, n_chunks, chunk_size):
    """(B, L, ...) -> (B, c, q, ...), zero-padded at the end."""
    missing = n_chunks * chunk_size - t.shape[1]
    padded = F.pad(t, (0, 0) * (t.dim() - 2) + (0, missing)) if missing else t
    return padded.unflatten(1, (n_chunks, chunk_size))


def over_heads(t, heads):
    """(..., G, N) -> (..., H, N): a group's columns for each of its heads."""
    return t.repeat_interleave(heads // t.shape[-2], dim=-2)


def _chunk_cumsum_fwd(dt, A, chunk_size, dt_bias=None, dt_softplus=False, dt_limit=(0.0, float("inf"))):
    """dt (B, L, H), A (H) -> (cumulative sums of A d per chunk, d), both (B, H, c, q) float32; padding has d = 0."""
    n_chunks = math.ceil(dt.shape[1] / chunk_size)
    d = split_chunks(time_steps(dt, dt_bias, dt_softplus, dt_limit), n_chunks, chunk_size).permute(0, 3, 1, 2)
    return torch.cumsum(d * A.float()[:, None, None], dim=-1), d


def _chunk_state_fwd(B, x, dt, dA_cumsum, seq_idx=None, states=None, states_in_fp32=True):
    """B (B, L, G, N), x (B, L, H, P) -> (B, c, H, P, N): the state after each chunk, starting from zero. With seq_idx
    only tokens of the chunk's last sequence count, none if its index is negative."""
    n_chunks, q = dt.shape[2:]
    weight = torch.exp(dA_cumsum[..., -1:] - dA_cumsum) * dt
    if seq_idx is not None:
        index = split_chunks(seq_idx, n_chunks, q)
        last = seq_idx[:, [min((i + 1) * q, seq_idx.shape[1]) - 1 for i in range(n_chunks)]]
        weight = weight * ((index == last[..., None]) & (last[..., None] >= 0))[:, None]
    X, columns = [split_chunks(t.float(), n_chunks, q) for t in (x, over_heads(B, x.shape[2]))]
    out = torch.einsum("bcqhn,bhcq,bcqhp->bchpn", columns, weight, X).to(torch.float32 if states_in_fp32 else x.dtype)
    return out if states is None else states.copy_(out)


def from_here_on(t):
    """Sums over each position and those after it: a gradient of cumulative sums becomes that of their terms."""
    return t.flip(-1).cumsum(-1).flip(-1)


def _chunk_cumsum_bwd(ddA, ddt_out, dt, A, dt_bias=None, dt_softplus=False, dt_limit=(0.0, float("inf")), ddt=None):
    """ddA: the gradient of A d, before the cumulative sums; ddt_out: of d -> gradients of dt, A, dt_bias (None without it)."""
    def terms(dt, A, dt_bias):
        d = split_chunks(time_steps(dt, dt_bias, dt_softplus, dt_limit), *ddA.shape[2:]).permute(0, 3, 1, 2)
        return d * A.float()[:, None, None], d

    if dt_bias is None:
        found = (*gradients(lambda dt, A: terms(dt, A, None), (dt, A), (ddA, ddt_out)), None)
    else:
        found = gradients(terms, (dt, A, dt_bias), (ddA, ddt_out))
    return (found[0] if ddt is None else ddt.copy_(found[0]), *found[1:])


def _chunk_state_bwd_dx(B, x, dt, dA_cumsum, dstates, dx=None):
    """-> gradients of x, dt, dA_cumsum."""
    found = gradients(lambda x, dt, sums: _chunk_state_fwd(B, x, dt, sums), (x, dt, dA_cumsum), dstates)
    return (found[0] if dx is None else dx.copy_(found[0]), *found[1:])


def _chunk_state_bwd_db(x, dt, dA_cumsum, dstates, seq_idx=None, B=None, ngroups=1):
    """-> the gradient of B, float32[, with B that of the terms of dA_cumsum]."""
    like = x.new_zeros(*x.shape[:2], ngroups, dstates.shape[-1], dtype=torch.float32) if B is None else B.float()
    dB, dsums = gradients(lambda B, sums: _chunk_state_fwd(B, x, dt, sums, seq_idx), (like, dA_cumsum), dstates)
    return dB if B is None else (dB, from_here_on(dsums))


def _chunk_state_bwd_ddAcs_stable(B, x, dt, dA_cumsum, dstates, seq_idx=None):
    """-> the gradient of the terms of dA_cumsum."""
    return from_here_on(gradients(lambda sums: _chunk_state_fwd(B, x, dt, sums, seq_idx), (dA_cumsum,), dstates)[0])


def chunk_state(B, x, dt, dA_cumsum, states_in_fp32=True):
    """-> (B, c, H, P, N), each chunk independently."""
    return _chunk_state_fwd(B, x, dt, dA_cumsum, states_in_fp32=states_in_fp32)


ChunkStateFn = function_by_name("ChunkStateFn", chunk_state)


def chunk_state_ref(B, x, dt, dA_cumsum):
    """chunk_state in the type of x."""
    return _chunk_state_fwd(B, x, dt, dA_cumsum, states_in_fp32=False)


def chunk_state_varlen(B, x, dt, dA_cumsum, cu_seqlens, chunk_states):
    """B (L, G, N), x (L, H, P), dt and dA_cumsum (H, c, q), chunk_states (c, H, P, N) before each chunk -> (S, H, P, N):
    each packed sequence's state after its last token, 0 if empty."""
    q, ends = dt.shape[2], cu_seqlens.tolist()
    columns, out = over_heads(B, x.shape[1]), []
    for begin, end in zip(ends, ends[1:]):
        chunk = max(end - 1, 0) // q
        low = max(begin, chunk * q)
        inside = slice(low - chunk * q, end - chunk * q)
        sums = dA_cumsum[:, chunk]
        last = sums[:, end - 1 - chunk * q, None]
        weight = torch.exp(last - sums[:, inside]) * dt[:, chunk, inside]
        state = torch.einsum("qhn,hq,qhp->hpn", columns[low:end].float(), weight, x[low:end].float())
        if begin < chunk * q:
            state = state + torch.exp(last)[..., None] * chunk_states[chunk].float()
        out.append(state if end > begin else torch.zeros_like(state))
    return torch.stack(out).to(chunk_states.dtype)
