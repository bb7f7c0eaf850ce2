"""Attention within chunks of keys, over values of any width and in float8, from the attention operator: what
FlashAttention-3 offers beyond it."""

import torch

from .attention import append, attention, rotary, window

_FLOAT8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))
_WIDEST = 256  # the operator's limit for v's features


def is_float8(t):
    return t.dtype in _FLOAT8


def _sequence_of_tokens(cu_seqlens, n_tokens):
    last = cu_seqlens.shape[0] - 2
    return torch.bucketize(torch.arange(n_tokens, device=cu_seqlens.device, dtype=torch.int32), cu_seqlens[1:].contiguous(), right=True).clamp(max=last)


def widened(t, descale, cu_seqlens=None):
    """t (..., H, D) in bfloat16, times descale (B, Hk) or of one number."""
    if descale is None:
        return t.to(torch.bfloat16) if is_float8(t) else t
    if descale.dim() == 2:
        descale = descale.repeat_interleave(t.shape[-2] // descale.shape[1], 1).unsqueeze(-1)
        descale = descale.unsqueeze(1) if cu_seqlens is None else descale[_sequence_of_tokens(cu_seqlens, t.shape[0])]
    return (t.float() * descale).to(torch.bfloat16 if is_float8(t) else t.dtype)


def wide_attention(q, k, v, **options):
    """Values of more features than the operator's limit in parts."""
    if v.shape[-1] <= _WIDEST:
        return attention(q, k, v, **options)
    parts = [attention(q, k, part, **dict(options, want_lse=True)) for part in v.split(_WIDEST, -1)]
    return torch.cat([out for out, _ in parts], -1), parts[0][1]


def _ends(cu_seqlens, n, length, device):
    """Begins (n) and lengths (n) of sequences; dense ones follow each other, too."""
    if cu_seqlens is None:
        cu_seqlens = torch.arange(0, (n + 1) * length, max(length, 1), device=device)[:n + 1] if length else torch.zeros(n + 1, dtype=torch.int64, device=device)
    cu_seqlens = cu_seqlens.to(torch.int64)
    return cu_seqlens[:-1, None], cu_seqlens[1:, None] - cu_seqlens[:-1, None]


def _cuts(chunk, n_queries, n_keys, longest):
    """Where sequences are cut, (B, cuts): keys at multiples of `chunk`, queries so that the last of each part sees its last
    key, as the last query sees the last key. Queries before the first cut see nothing."""
    marks = torch.arange(-(-longest // chunk) + 1, device=n_keys.device) * chunk
    keys = torch.minimum(marks, n_keys)
    return (keys - n_keys + n_queries).clamp(min=0), keys


def _joined(begins, cuts):
    return torch.cat([cuts.new_zeros(1), (begins + cuts).flatten()]).to(torch.int32)


def chunked_attention(chunk, q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_q=0, max_k=0, **options):
    """attention, where a query only sees keys of its own chunk: of the `chunk` keys from a multiple of it. Each chunk
    becomes a packed sequence of its own."""
    is_dense, n = cu_seqlens_q is None, q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    max_q, max_k = max_q or q.shape[1 if is_dense else 0], max_k or k.shape[1 if cu_seqlens_k is None else 0]
    (begin_q, len_q), (begin_k, len_k) = _ends(cu_seqlens_q, n, q.shape[1], q.device), _ends(cu_seqlens_k, n, k.shape[1], q.device)
    used_q, used_k = [length if used is None else used.to(torch.int64)[:, None] for used, length in ((seqused_q, len_q), (seqused_k, len_k))]
    queries, keys = _cuts(chunk, used_q, used_k, max_k)
    # Unused queries and then unused keys, which do not meet, follow.
    cu_q = _joined(begin_q, torch.cat([queries, len_q, len_q], 1))
    cu_k = _joined(begin_k, torch.cat([keys, used_k, len_k], 1))
    packed = [t.flatten(0, 1) if cu is None else t for t, cu in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))]
    out, lse = wide_attention(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_q=max_q, max_k=max_k, **options)
    if is_dense:
        out, lse = out.unflatten(0, q.shape[:2]), None if lse is None else lse.unflatten(1, q.shape[:2]).transpose(0, 1)
    return out, lse


def _chunked_cache(chunk, q, k_cache, v_cache, cu_seqlens_q, seqused_k, leftpad_k, cache_batch_idx, block_table, **options):
    """The same over a cache without pages: each chunk becomes a row of the batch with its own leading and last key."""
    capacity = k_cache.shape[1]
    n = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    begin_q, len_q = _ends(cu_seqlens_q, n, q.shape[1], q.device)
    pad = begin_q * 0 if leftpad_k is None else leftpad_k.to(torch.int64)[:, None]
    end = begin_q * 0 + capacity if seqused_k is None else seqused_k.to(torch.int64)[:, None]
    queries, keys = _cuts(chunk, len_q, (end - pad).clamp(min=0), capacity)
    first = torch.cat([keys[:, :1], keys[:, :-1]], 1) + pad
    rows = torch.arange(n, dtype=torch.int32, device=q.device) if cache_batch_idx is None else cache_batch_idx
    each, is_dense = keys.shape[1], cu_seqlens_q is None
    out, lse = wide_attention(q.flatten(0, 1) if is_dense else q, k_cache, v_cache, cu_seqlens_q=_joined(begin_q, queries), seqused_k=(keys + pad).flatten().to(torch.int32),
                              leftpad_k=first.flatten().to(torch.int32), cache_batch_idx=rows.repeat_interleave(each), **options)
    if is_dense:
        out, lse = out.unflatten(0, q.shape[:2]), None if lse is None else lse.unflatten(1, q.shape[:2]).transpose(0, 1)
    return out, lse


def _append_packed(k, v, cu_seqlens, used, rows, table, k_cache, v_cache):
    """Tokens of packed sequences, each as a row of the batch -> the new counts."""
    sequence = _sequence_of_tokens(cu_seqlens, k.shape[0])
    place = used[sequence] + torch.arange(k.shape[0], dtype=torch.int32, device=k.device) - cu_seqlens[sequence]
    rows = None if table is not None else sequence.to(torch.int32) if rows is None else rows[sequence]
    if k.shape[0]:
        append(k.unsqueeze(1), v.unsqueeze(1), None, None, place.to(torch.int32), rows, None if table is None else table[sequence], k_cache, v_cache, False)
    return (used + cu_seqlens[1:] - cu_seqlens[:-1]).to(torch.int32)


def attention_with_cache(q, k_cache, v_cache, k, v, cos, sin, used, rows, leftpad, table, cu_seqlens_q, cu_seqlens_k_new, max_q, positions, scale, causal, sizes,
                         chunk, softcap, interleaved):
    """Queries, dense or packed, over a cache, after appending new keys and values, dense or packed -> out, log-sum-exp.
    positions (B): those of the first new key and query, if not `used`."""
    if is_float8(k_cache):
        wide = [t if t is None else t.to(torch.bfloat16) for t in (q, k_cache, v_cache, k, v, cos, sin)]
        found = attention_with_cache(*wide, used, rows, leftpad, table, cu_seqlens_q, cu_seqlens_k_new, max_q, positions, scale, causal, sizes, chunk, softcap, interleaved)
        if k is not None:
            k_cache.copy_(wide[1]), v_cache.copy_(wide[2])
        return found
    n = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if isinstance(used, int):
        used = torch.full((n,), used, dtype=torch.int32, device=q.device)
    table, rows, leftpad, used = [t if t is None else t.to(torch.int32) for t in (table, rows, leftpad, used)]
    if table is not None and rows is not None:
        table, rows = table[rows.long()], None
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])
    left, right = window(sizes, causal, capacity)
    if k is not None:
        if used is None:
            raise RuntimeError("flash_attn_with_kvcache: k and v need cache_seqlens, their position")
        if cos is not None:
            at = used if positions is None else positions
            q = rotary(q, cos, sin, at, cu_seqlens_q, interleaved=interleaved, still=(left, right) == (-1, -1) and not chunk)
            k = rotary(k, cos, sin, at, cu_seqlens_k_new, interleaved=interleaved)
        if cu_seqlens_k_new is None:
            used = append(k, v, None, None, used, rows, table, k_cache, v_cache, False)
        else:
            used = _append_packed(k, v, cu_seqlens_k_new, used, rows, table, k_cache, v_cache)
    if table is not None and (leftpad is not None or chunk):
        # The operator has no first key within pages: they are copied.
        pages = table.clamp(0, k_cache.shape[0] - 1).long()
        k_cache, v_cache, table = k_cache[pages].flatten(1, 2), v_cache[pages].flatten(1, 2), None
    options = dict(cu_seqlens_q=cu_seqlens_q, seqused_k=used, leftpad_k=leftpad, cache_batch_idx=rows, block_table=table, scale=scale, softcap=softcap,
                   window=(left, right), max_q=max_q or 0, want_lse=True)
    return _chunked_cache(chunk, q, k_cache, v_cache, **options) if chunk else wide_attention(q, k_cache, v_cache, **options)
