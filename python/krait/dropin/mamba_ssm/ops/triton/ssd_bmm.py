"""Products of C and B inside each chunk, in plain torch."""

import math

import torch

from mamba_ssm.ops.triton.ssd_chunk_state import split_chunks


def _bmm_chunk_fwd(a, b, chunk_size, seq_idx=None, causal=False, output_dtype=None):
    """a, b (B, L, K) or (B, L, G, K) -> (B, c, q, q) or (B, c, G, q, q): a_i . b_j, with seq_idx 0 between sequences.
    `causal` leaves the upper triangle undefined upstream; here it is computed too."""
    n_chunks = math.ceil(a.shape[1] / chunk_size)
    left, right = [split_chunks(t if t.dim() == 4 else t.unsqueeze(2), n_chunks, chunk_size) for t in (a, b)]
    out = torch.einsum("bcigk,bcjgk->bcgij", left, right)
    if seq_idx is not None:
        index = split_chunks(seq_idx, n_chunks, chunk_size)
        out = out * (index[:, :, None, :, None] == index[:, :, None, None, :])
    out = out.to(a.dtype if output_dtype is None else output_dtype)
    return out if a.dim() == 4 else out.squeeze(2)


def _bmm_chunk_bwd(a, dout, residual=None, out=None):
    """The gradient of _bmm_chunk_fwd's b (with dout transposed, of its a), plus residual -> like a."""
    n_chunks, q = dout.shape[1], dout.shape[-1]
    wide, rows = [t if a.dim() == 4 else t.unsqueeze(2) for t in (dout, a)]
    grad = torch.einsum("bcgij,bcigk->bcjgk", wide.float(), split_chunks(rows.float(), n_chunks, q)).flatten(1, 2)[:, :a.shape[1]]
    grad = grad if a.dim() == 4 else grad.squeeze(2)
    grad = (grad if residual is None else grad + residual).to(a.dtype)
    return grad if out is None else out.copy_(grad)


def bmm_chunk(a, b, chunk_size, seq_idx=None, causal=False, output_dtype=None):
    return _bmm_chunk_fwd(a, b, chunk_size, seq_idx, causal, output_dtype)


bmm_chunk_ref = bmm_chunk
