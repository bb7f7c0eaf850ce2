"""The output of Mamba-2's scan from the state before each chunk, in plain torch."""

import torch
import torch.nn.functional as F

from krait._function import function_by_name, gradients
from mamba_ssm.ops.triton.ssd_bmm import _bmm_chunk_fwd
from mamba_ssm.ops.triton.ssd_chunk_state import from_here_on, over_heads, split_chunks


def _decays(dA_cumsum):
    """The decay exp(...) from token j to i of a chunk, 0 for j after i: (B, H, c, i, j)."""
    q = dA_cumsum.shape[-1]
    past = torch.ones(q, q, dtype=torch.bool, device=dA_cumsum.device).tril()
    return torch.exp((dA_cumsum[..., :, None] - dA_cumsum[..., None, :]).masked_fill(~past, float("-inf")))


def _reaches_back(seq_idx, n_chunks, q):
    """Whether a token sees its chunk's initial state: (B, c, q)."""
    index = split_chunks(seq_idx, n_chunks, q)
    before = F.pad(seq_idx[:, q - 1:(n_chunks - 1) * q:q], (1, 0))
    return index == before[..., None]


def _inside(cb, x, dt, dA_cumsum):
    """What a token gets from its own chunk: (B, c, q, H, P) float32."""
    X = split_chunks(x.float(), *dt.shape[2:])
    weights = cb.float().repeat_interleave(x.shape[2] // cb.shape[2], dim=2).transpose(1, 2) * _decays(dA_cumsum) * dt[..., None, :]
    return torch.einsum("bhcij,bcjhp->bcihp", weights, X)


def _carried(C, states, dA_cumsum, seq_idx=None):
    """What a token gets from the state before its chunk: (B, c, q, H, P) float32."""
    n_chunks, q = dA_cumsum.shape[2:]
    reach = torch.exp(dA_cumsum)
    if seq_idx is not None:
        reach = reach * _reaches_back(seq_idx, n_chunks, q)[:, None]
    columns = split_chunks(over_heads(C, states.shape[2]).float(), n_chunks, q)
    return torch.einsum("bcqhn,bchpn,bhcq->bcqhp", columns, states.float(), reach)


def _chunk_scan_fwd(cb, x, dt, dA_cumsum, C, states, D=None, z=None, seq_idx=None):
    """cb (B, c, G, q, q) products of C and B, x (B, L, H, P), C (B, L, G, N), states (B, c, H, P, N) -> (out like x, out before the gate or None)."""
    out = (_inside(cb, x, dt, dA_cumsum) + _carried(C, states, dA_cumsum, seq_idx)).flatten(1, 2)[:, :x.shape[1]]
    if D is not None:
        out = out + x * (D if D.dim() == 2 else D[:, None])
    return (out if z is None else out * F.silu(z.float())).to(x.dtype), None if z is None else out.to(x.dtype)


def _in_chunks(dout, dt):
    return split_chunks(dout.float(), *dt.shape[2:])


def _chunk_scan_bwd_dstates(C, dA_cumsum, dout, seq_idx=None, dtype=None):
    """-> the gradient of the states before each chunk, (B, c, H, P, N)."""
    shape = C.shape[0], dA_cumsum.shape[2], dout.shape[2], dout.shape[3], C.shape[3]
    grad = gradients(lambda states: _carried(C, states, dA_cumsum, seq_idx), (dout.new_zeros(shape, dtype=torch.float32),), _in_chunks(dout, dA_cumsum))[0]
    return grad.to(C.dtype if dtype is None else dtype)


def _chunk_scan_bwd_dC(prev_states, dA_cumsum, dout, seq_idx=None, C=None, ngroups=1):
    """-> the gradient of C, float32[, with C that of dA_cumsum through the states]."""
    like = dout.new_zeros(*dout.shape[:2], ngroups, prev_states.shape[-1], dtype=torch.float32) if C is None else C.float()
    dC, dsums = gradients(lambda C, sums: _carried(C, prev_states, sums, seq_idx), (like, dA_cumsum), _in_chunks(dout, dA_cumsum))
    return dC if C is None else (dC, dsums)


def _chunk_scan_bwd_ddAcs_prev(prev_states, C, dout, dA_cumsum, seq_idx=None):
    """-> the gradient of dA_cumsum through the states."""
    return _chunk_scan_bwd_dC(prev_states, dA_cumsum, dout, seq_idx, C)[1]


def _chunk_scan_bwd_dcb(x, dt, dA_cumsum, dout, seq_idx=None, CB=None, ngroups=1):
    """-> the gradient of the products of C and B, (B, c, G, q, q) float32[, with CB that of the terms of dA_cumsum]."""
    n_chunks, q = dt.shape[2:]
    like = x.new_zeros(x.shape[0], n_chunks, ngroups, q, q, dtype=torch.float32) if CB is None else CB.float()
    dcb, dsums = gradients(lambda cb, sums: _inside(cb, x, dt, sums), (like, dA_cumsum), _in_chunks(dout, dt))
    if seq_idx is not None:
        index = split_chunks(seq_idx, n_chunks, q)
        dcb = dcb * (index[:, :, None, :, None] == index[:, :, None, None, :])
    return dcb if CB is None else (dcb, from_here_on(dsums))


def _chunk_scan_bwd_dx(cb, x, dt, dA_cumsum, dout, D=None):
    """-> gradients of x (with D's part) and dt, within the chunks."""
    dx, ddt = gradients(lambda x, dt: _inside(cb, x, dt, dA_cumsum), (x.float(), dt), _in_chunks(dout, dt))
    if D is not None:
        dx = dx + dout.float() * (D if D.dim() == 2 else D[:, None])
    return dx.to(x.dtype), ddt


def _chunk_scan_bwd_ddAcs_stable(x, dt, dA_cumsum, dout, cb):
    """-> the gradient of the terms of dA_cumsum, within the chunks."""
    return from_here_on(gradients(lambda sums: _inside(cb, x, dt, sums), (dA_cumsum,), _in_chunks(dout, dt))[0])


_chunk_scan_bwd_ddAcs_stable_old = _chunk_scan_bwd_ddAcs_stable


def chunk_scan(B, C, x, dt, dA_cumsum, prev_states, D=None, z=None):
    """B, C (B, L, G, N), x and z (B, L, H, P), dt and its sums (B, H, c, q), prev_states (B, c, H, P, N) -> out like x."""
    cb = _bmm_chunk_fwd(C, B, dt.shape[3], output_dtype=torch.float32)
    return _chunk_scan_fwd(cb, x, dt, dA_cumsum, C, prev_states, D, z)[0]


chunk_scan_ref = chunk_scan
ChunkScanFn = function_by_name("ChunkScanFn", chunk_scan)
