"""The Mamba-2 paper's listing: the scan of X = x d and A = A d, in blocks, in plain torch."""

import torch
import torch.nn.functional as F


def segsum(x):
    """(..., T) -> (..., T, T): the sum of x after j up to i, -inf for j after i; avoids differences of long sums."""
    t = x.shape[-1]
    ones = torch.ones(t, t, dtype=torch.bool, device=x.device)
    sums = x[..., None].expand(*x.shape, t).masked_fill(~ones.tril(-1), 0).cumsum(dim=-2)
    return sums.masked_fill(~ones.tril(), float("-inf"))


def segsum_unstable(x):
    """segsum from differences of sums."""
    t, sums = x.shape[-1], x.cumsum(dim=-1)
    past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(~past, float("-inf"))


def ssd_minimal_discrete(X, A, B, C, block_len, initial_states=None):
    """X (B, L, H, P), A (B, L, H), B and C (B, L, G, N), L a multiple of block_len -> (Y (B, L, H, P), final state (B, H, P, N)).

    initial_states (B, H, P, N), or with an axis of one before H as in upstream's listing."""
    assert X.dtype == A.dtype == B.dtype == C.dtype, "X, A, B and C must have one dtype"
    assert X.shape[1] % block_len == 0, "length %d is not a multiple of block_len %d" % (X.shape[1], block_len)
    heads = X.shape[2]
    X, A, B, C = [t.unflatten(1, (-1, block_len)) for t in (X, A, B, C)]
    B, C = [t.repeat_interleave(heads // t.shape[3], dim=3) for t in (B, C)]
    A = A.permute(0, 3, 1, 2)
    sums = A.cumsum(dim=-1)
    inside = torch.einsum("bcihn,bcjhn,bhcij,bcjhp->bcihp", C, B, torch.exp(segsum(A)), X)
    added = torch.einsum("bcjhn,bhcj,bcjhp->bchpn", B, torch.exp(sums[..., -1:] - sums), X)
    first = torch.zeros_like(added[:, :1]) if initial_states is None else initial_states.reshape(added[:, :1].shape)
    between = torch.exp(segsum(F.pad(sums[..., -1], (1, 0))))
    states = torch.einsum("bhzc,bchpn->bzhpn", between, torch.cat([first, added], dim=1))
    carried = torch.einsum("bcihn,bchpn,bhci->bcihp", C, states[:, :-1], torch.exp(sums))
    return (inside + carried).flatten(1, 2), states[:, -1]
