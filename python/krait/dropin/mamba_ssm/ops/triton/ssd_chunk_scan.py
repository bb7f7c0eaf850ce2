"""The output of Mamba-2's scan from the state before each chunk, in plain torch."""

import torch
import torch.nn.functional as F

from mamba_ssm.ops.triton.ssd_bmm import _bmm_chunk_fwd
from mamba_ssm.ops.triton.ssd_chunk_state import over_heads, split_chunks


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


def _chunk_scan_fwd(cb, x, dt, dA_cumsum, C, states, D=None, z=None, seq_idx=None):
    """cb (B, c, G, q, q) products of C and B, x (B, L, H, P), C (B, L, G, N), states (B, c, H, P, N) -> (out like x, out before the gate or None)."""
    heads, (n_chunks, q), length = x.shape[2], dt.shape[2:], x.shape[1]
    X, columns = split_chunks(x.float(), n_chunks, q), split_chunks(over_heads(C, heads).float(), n_chunks, q)
    inside = cb.float().repeat_interleave(heads // cb.shape[2], dim=2).transpose(1, 2) * _decays(dA_cumsum) * dt[..., None, :]
    carried = torch.exp(dA_cumsum)
    if seq_idx is not None:
        carried = carried * _reaches_back(seq_idx, n_chunks, q)[:, None]
    out = torch.einsum("bhcij,bcjhp->bcihp", inside, X) + torch.einsum("bcqhn,bchpn,bhcq->bcqhp", columns, states.float(), carried)
    out = out.flatten(1, 2)[:, :length]
    if D is not None:
        out = out + x * (D if D.dim() == 2 else D[:, None])
    return (out if z is None else out * F.silu(z.float())).to(x.dtype), None if z is None else out.to(x.dtype)


def chunk_scan(B, C, x, dt, dA_cumsum, prev_states, D=None, z=None):
    """B, C (B, L, G, N), x and z (B, L, H, P), dt and its sums (B, H, c, q), prev_states (B, c, H, P, N) -> out like x."""
    cb = _bmm_chunk_fwd(C, B, dt.shape[3], output_dtype=torch.float32)
    return _chunk_scan_fwd(cb, x, dt, dA_cumsum, C, prev_states, D, z)[0]


chunk_scan_ref = chunk_scan
