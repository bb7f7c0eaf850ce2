"""Attention probabilities as a tensor, for tests: (B, H, Sq, Sk), 256 keys at a time, by one-hot values."""

import torch

from .attention import attention

_MOST = 256  # the operator's limit for v's features


def _places(t, cu_seqlens):
    """Each token's sequence and its place there; of dense sequences, the places."""
    if cu_seqlens is None:
        return None, torch.arange(t.shape[1], device=t.device)
    at = torch.arange(t.shape[0], device=t.device)
    ends = cu_seqlens.to(torch.int64)
    sequence = torch.bucketize(at, ends[1:].contiguous(), right=True).clamp(max=ends.shape[0] - 2)
    return sequence, at - ends[sequence]


def _columns(q, k, begin, end, options):
    """Probabilities of the keys at begin to end of each sequence, (B, H, Sq, end - begin)."""
    _, place = _places(k, options.get("cu_seqlens_k"))
    picks = (place[:, None, None] == torch.arange(begin, end, device=q.device)).to(q.dtype).expand(*k.shape[-3:-1], end - begin)
    out = attention(q, k, picks.expand(*k.shape[:-1], end - begin).contiguous(), **options)[0]
    if options.get("cu_seqlens_q") is None:
        return out.transpose(1, 2)
    sequence, place = _places(q, options["cu_seqlens_q"])
    most = max(options["max_q"], 1)
    found = out.new_zeros(options["cu_seqlens_q"].shape[0] - 1, q.shape[1], most + 1, end - begin)  # one more for tokens behind the last sequence
    found[sequence, :, place.clamp(max=most)] = out
    return found[:, :, :most]


def _dense(q, k, n_keys, rng=None, dropout=0.0, **options):
    parts = []
    with torch.no_grad():
        for begin in range(0, n_keys, _MOST):
            end = min(begin + _MOST, n_keys)
            whole = _columns(q, k, begin, end, options)
            kept = whole if dropout == 0.0 else _columns(q, k, begin, end, dict(options, dropout=dropout, rng=rng))
            parts.append(torch.where((kept == 0) & (whole != 0), -whole, whole))
    return torch.cat(parts, 3)


def attention_probabilities(q, k, v, block_table=None, **options):
    """Relative to the largest of each row, in q's type, negative where dropped out; sides rounded up to multiples of 128: as
    upstream's, where a row's keys fit in one of its tiles. None for pages, whose probabilities upstream's callers do not read."""
    n_keys = k.shape[1] if options.get("cu_seqlens_k") is None else options["max_k"]
    if block_table is not None or k.shape[0] == 0 or n_keys == 0:
        return None
    found = _dense(q, k, n_keys, **options)
    largest = found.abs().amax(3, keepdim=True)
    found = found / torch.where(largest == 0, 1, largest)
    return torch.nn.functional.pad(found, (0, -found.shape[3] % 128, 0, -found.shape[2] % 128))
