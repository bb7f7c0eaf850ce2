"""Attention probabilities as a tensor, for tests: (B, H, Sq, Sk), 256 keys at a time, by one-hot values."""

import torch

from .attention import attention

_MOST = 256  # the operator's limit for v's features


def _columns(q, k, begin, end, options):
    picks = torch.zeros(*k.shape[:-1], end - begin, dtype=q.dtype, device=q.device)
    index = torch.arange(begin, end, device=q.device)
    picks[:, index, :, index - begin] = 1
    return attention(q, k, picks, **options)[0].transpose(1, 2)


def _dense(q, k, v, rng=None, dropout=0.0, **options):
    parts = []
    with torch.no_grad():
        for begin in range(0, k.shape[1], _MOST):
            end = min(begin + _MOST, k.shape[1])
            whole = _columns(q, k, begin, end, options)
            kept = whole if dropout == 0.0 else _columns(q, k, begin, end, dict(options, dropout=dropout, rng=rng))
            parts.append(torch.where((kept == 0) & (whole != 0), -whole, whole))
    return torch.cat(parts, 3)


def attention_probabilities(q, k, v, cu_seqlens_q=None, max_q=0, max_k=0, block_table=None, **options):
    """Normalised, in q's type, negative where dropped out; sides rounded up to multiples of 128, as upstream's. None for
    packed sequences and pages, whose probabilities upstream's callers do not read."""
    if cu_seqlens_q is not None or block_table is not None or k.shape[1] == 0:
        return None
    found = _dense(q, k, v, **options)
    return torch.nn.functional.pad(found, (0, -found.shape[3] % 128, 0, -found.shape[2] % 128))
