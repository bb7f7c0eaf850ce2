"""Softmax attention, dense, packed and over a KV cache, forward and backward; rotary embedding. flash_attn's layouts:
(B, L, H, D), packed (tokens, H, D)."""

import math
from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled
from torch.nn.functional import pad

from . import composed
from .._call import ANY, Call, Operator, load, place, refuse_negative_bit, signer
from .._torch import autocast_dtype, call_after, custom_op, differentiable, is_dynamo, is_fake, is_traced, layout, once, zeros_like

_INPUTS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "cache_batch_idx", "block_table", "alibi_slopes",
           "sinks", "rng")
_SHARED = dict(q=(0, 4), k=(0, 4), v=(0, 4), out=(0, 4), lse=(0, 3), alibi_slopes=(0, 2, ANY))
FORWARD = Operator("attention", " ".join(_INPUTS) + " out lse", **_SHARED)
BACKWARD = Operator("attention_bwd", "q k v cu_seqlens_q cu_seqlens_k seqused_q seqused_k alibi_slopes sinks rng out lse dout dlse dq dk dv dsinks",
                    dout=(0, 4), dq=(0, 4), dk=(0, 4), dv=(0, 4), dlse=(0, 3), **_SHARED)
_APPEND = Operator("attention_append", "k v cos sin cache_seqlens cache_batch_idx block_table k_cache v_cache seqused")
ROTARY = Operator("rotary", "x cos sin offsets cu_seqlens out", x=(0, 4), out=(0, 4))
_signature, _rotary_signature = signer(len(_INPUTS)), signer(5)
_CAUSAL, _WINDOW, _ANY_ORDER = 1, 2, 4               # KRAIT_ATTENTION_*
_INTERLEAVED, _INVERSE, _STILL = 1, 2, 4             # KRAIT_ROTARY_*
_FREE = (0, 1, 2)                                    # indices in _INPUTS that have gradients, besides sinks
_SINKS = _INPUTS.index("sinks")


def _sequences(q, cu_seqlens_q):
    return q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1


def _need_dims(name, t, cu_seqlens):
    """(tokens, heads, features) only with cu_seqlens."""
    if t.dim() != (4 if cu_seqlens is None else 3):
        raise RuntimeError("%s has %d dimensions, must be (B, L, H, D), or (tokens, H, D) with cu_seqlens" % (name, t.dim()))


def _check(tensors):
    """-> the tensors. The operator checks the contents of sequences."""
    q, k, v, cu_q, cu_k = tensors[:5]
    for name, t, cu_seqlens in (("q", q, cu_q), ("k", k, cu_k), ("v", v, cu_k)):
        _need_dims("attention: " + name, t, cu_seqlens)
    if not is_traced():
        FORWARD.check(tensors)
    return tensors


def _numbers(options):
    scale, softcap, dropout, left, right, _, max_q, max_k, _ = options
    return dict(max_q=max_q, max_k=max_k, window_left=left, window_right=right, scale=scale, softcap=softcap, dropout=dropout)


def _flags(options):
    left, right, any_order = options[3:6]
    masked = _CAUSAL if (left, right) == (-1, 0) else _WINDOW if (left, right) != (-1, -1) else 0
    return masked | (_ANY_ORDER if any_order else 0)


def _empty(q, v, cu_q, want_lse):
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    shape = (q.shape[1], q.shape[0]) if cu_q is not None else (q.shape[0], q.shape[2], q.shape[1])
    return out, torch.empty(shape, dtype=torch.float32, device=q.device) if want_lse else None


def _fake_forward(*inputs):
    return _empty(inputs[0], inputs[2], inputs[3], inputs[-1])


def _run_forward(call, *inputs):
    tensors, options = inputs[:len(_INPUTS)], inputs[len(_INPUTS):]
    out, lse = _empty(tensors[0], tensors[2], tensors[3], options[-1])
    tensors = (*tensors, out, lse)
    if call.words is None:
        call.pack(tensors, _flags(options), **_numbers(options))
    call.run(tensors)
    return out, lse


def run_backward(call, inputs, options, out, lse, dout, dlse, grads):
    """The plain call, into the given gradients (dq, dk, dv, dsinks; None: not computed)."""
    q, k, v, cu_q, cu_k, used_q, used_k, _, _, _, slopes, sinks, rng = inputs
    tensors = (q, k, v, cu_q, cu_k, used_q, used_k, slopes, sinks, rng, out, lse, dout, dlse, *grads)
    if call.words is None:
        call.pack(tensors, _flags(options), **_numbers(options))
    call.run(tensors)


def _fake_backward(q, k, v, cu_q, cu_k, used_q, used_k, slopes, sinks, *_):
    return [torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None if sinks is None else torch.empty_like(sinks)]


@custom_op("attention_bwd", _fake_backward)
def _backward(q: Tensor, k: Tensor, v: Tensor, cu_q: Optional[Tensor], cu_k: Optional[Tensor], used_q: Optional[Tensor], used_k: Optional[Tensor],
              slopes: Optional[Tensor], sinks: Optional[Tensor], rng: Optional[Tensor], out: Tensor, lse: Tensor, dout: Tensor, dlse: Optional[Tensor],
              scale: float, softcap: float, dropout: float, left: int, right: int, any_order: bool, max_q: int, max_k: int) -> List[Tensor]:
    grads = _fake_backward(q, k, v, cu_q, cu_k, used_q, used_k, slopes, sinks)
    inputs = (q, k, v, cu_q, cu_k, used_q, used_k, None, None, None, slopes, sinks, rng)
    run_backward(Call(BACKWARD), inputs, (scale, softcap, dropout, left, right, any_order, max_q, max_k, True), out, lse, dout, dlse, grads)
    return grads


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:len(_INPUTS)], *output)
    ctx.options = inputs[len(_INPUTS):]
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse=None):
    *inputs, out, lse = ctx.saved_tensors
    if any([t is not None for t in inputs[7:10]]):
        raise RuntimeError("attention: no gradient through a cache (leftpad_k, cache_batch_idx, block_table)")
    q, k, v, cu_q, cu_k, used_q, used_k, _, _, _, slopes, sinks, rng = inputs
    dout = zeros_like(out) if dout is None else dout if dout.stride(-1) == 1 or dout.shape[-1] == 1 else dout.contiguous()
    call = call_after(ctx, BACKWARD, (dout.stride(), layout(dlse)))
    if call is None:
        grads = _backward(q, k, v, cu_q, cu_k, used_q, used_k, slopes, sinks, rng, out, lse, dout, dlse, *ctx.options[:-1])
    else:
        grads = _fake_backward(q, k, v, cu_q, cu_k, used_q, used_k, slopes, sinks)
        run_backward(call, inputs, ctx.options, out, lse, dout, dlse, grads)
    result = [None] * (len(_INPUTS) + len(ctx.options))
    result[0], result[1], result[2] = grads[:3]
    result[_SINKS] = None if sinks is None else grads[3]
    return tuple(result)


@custom_op("attention", _fake_forward, setup=_setup, backward=_gradients, composed=composed.attention)
def _forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor], seqused_q: Optional[Tensor],
             seqused_k: Optional[Tensor], leftpad_k: Optional[Tensor], cache_batch_idx: Optional[Tensor], block_table: Optional[Tensor],
             alibi_slopes: Optional[Tensor], sinks: Optional[Tensor], rng: Optional[Tensor], scale: float, softcap: float, dropout: float, left: int,
             right: int, any_order: bool, max_q: int, max_k: int, want_lse: bool) -> Tuple[Tensor, Tensor]:
    return _run_forward(Call(FORWARD), q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, cache_batch_idx, block_table, alibi_slopes,
                        sinks, rng, scale, softcap, dropout, left, right, any_order, max_q, max_k, want_lse)


_apply = differentiable("Attention", _run_forward, _setup, _gradients)


def window(sizes, causal, n_keys):
    """(left, right) for the operator: sides of at least n_keys are unlimited; causal sets right to 0."""
    left, right = [-1 if side is None or side < 0 or side >= n_keys else int(side) for side in sizes]
    return left, 0 if causal else right


def new_rng(q):
    """Dropout state of a call, (2) int64: seed and offset, drawn from torch's generator for q's device."""
    return torch.empty(2, dtype=torch.int64, device=q.device).random_()


def _last_is_dense(t):
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _cast(tensors):
    dtype = autocast_dtype(tensors[0])
    return tensors if dtype is None or tensors[0].dtype == dtype else [t.to(dtype) for t in tensors]


def tail(t, cu_seqlens):
    """How many of a CPU's packed tokens lie behind the last sequence. A GPU's lengths are not read."""
    if cu_seqlens is None or t.dim() != 3 or cu_seqlens.device.type != "cpu" or cu_seqlens.numel() == 0:
        return 0
    return max(0, t.shape[0] - int(cu_seqlens[-1]))


def attention(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, leftpad_k=None, cache_batch_idx=None, block_table=None,
              alibi_slopes=None, sinks=None, rng=None, scale=None, softcap=0.0, dropout=0.0, window=(-1, -1), deterministic=True, max_q=0, max_k=0,
              want_lse=False):
    """-> out like q, log-sum-exp (B, H, Lq), packed (H, tokens), float32, or None if neither wanted nor needed.

    window (left, right) is aligned to the bottom right; -1 is unlimited, (-1, 0) causal. seqused_k (B): number of leading
    keys used per sequence; leftpad_k (B), cache_batch_idx (B) and block_table (B, max pages) locate keys in a cache.
    sinks (H): an extra logit in each softmax. rng: new_rng, for dropout. scale None is 1 / sqrt(D). deterministic=False
    allows gradients to be summed in any order. Tokens behind the last packed sequence belong to none: out 0, log-sum-exp inf, gradients 0
    (on a GPU, as in upstream's, whatever the memory held)."""
    if (cu_seqlens_q is not None or cu_seqlens_k is not None) and not is_traced():
        n_q, n_k = tail(q, cu_seqlens_q), tail(k, cu_seqlens_k)
        if n_q or n_k:
            out, lse = attention(q[:q.shape[0] - n_q], k[:k.shape[0] - n_k], v[:v.shape[0] - n_k], cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k,
                                 cache_batch_idx, block_table, alibi_slopes, sinks, rng, scale, softcap, dropout, window, deterministic, max_q, max_k, want_lse)
            return pad(out, (0, 0, 0, 0, 0, n_q)), lse if lse is None else pad(lse, (0, n_q), value=math.inf)
    q, k, v = [_last_is_dense(t) for t in _cast((q, k, v))]
    if dropout > 0.0:
        rng = (new_rng(q) if rng is None else rng).view(torch.int32)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, cache_batch_idx, block_table, alibi_slopes, sinks, rng if dropout > 0.0 else None)
    differs = is_grad_enabled() and any([t is not None and t.requires_grad for t in (q, k, v, sinks)])
    options = (0.0 if scale is None else float(scale), float(softcap), float(dropout), window[0], window[1], not deterministic, int(max_q), int(max_k),
               bool(want_lse or differs))
    if is_traced(q):
        _check(tensors)
        return _forward(*tensors, *options[:-1], True)
    key = _signature(tensors, options)
    call = FORWARD.known.get(key)
    if call is None:
        call, tensors = FORWARD.keep(_signature, options, _check(tensors))
    return (_apply if differs else _run_forward)(call, *tensors, *options)


# ---- dense queries, keys and values alone: what most calls are, with the least host time ----
_plain_signature = signer(3)
_plain_calls = {}
_MOST_PLAIN = 1024


class _Plain(NamedTuple):
    """A known call: packed, its options, and the shapes of its outputs."""
    call: Call
    options: tuple
    out_shape: Optional[tuple]  # None: out is as q
    lse_shape: tuple


def _run_plain(plain, q, k, v, want_lse):
    out = torch.empty_like(q) if plain.out_shape is None else q.new_empty(plain.out_shape)
    lse = torch.empty(plain.lse_shape, dtype=torch.float32, device=q.device) if want_lse else None
    tensors = (q, k, v, None, None, None, None, None, None, None, None, None, None, out, lse)
    if plain.call.words is None:
        plain.call.pack(tensors, _flags(plain.options), **_numbers(plain.options))
    plain.call.run(tensors)
    return out, lse


class _PlainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plain, q, k, v):
        out, lse = _run_plain(plain, q, k, v, True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plain = plain
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 or dout.shape[-1] == 1 else dout.contiguous()
        call = ctx.plain.call.follower(BACKWARD, (dout.stride(), None))
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        run_backward(call, (q, k, v, *_NO_OTHERS), ctx.plain.options, out, lse, dout, None, (*grads, None))
        return (None, *grads)


_NO_OTHERS = (None,) * (len(_INPUTS) - 3)
_apply_plain = super(torch.autograd.Function, _PlainAttention).apply  # as in differentiable()


def _new_plain(q, k, v, options):
    """A call that attention() would make of them as they are; else False."""
    if any([t.dim() != 4 or t.is_neg() or _last_is_dense(t) is not t for t in (q, k, v)]):
        return False
    tensors = _check((q, k, v, *_NO_OTHERS))
    call, taken = FORWARD.keep(_signature, options, tensors)
    if any([a is not b for a, b in zip(tensors, taken)]):
        return False
    out_shape = None if q.is_contiguous() and v.shape[-1] == q.shape[-1] else (*q.shape[:-1], v.shape[-1])
    return _Plain(call, options, out_shape, (q.shape[0], q.shape[2], q.shape[1]))


def _load_with_gradient(plain, q, k, v):
    """Packs the calls of both directions; on a GPU loads their device code."""
    out, lse = _empty(q, v, None, True)
    inputs, numbers = (q, k, v, *_NO_OTHERS), (_flags(plain.options), _numbers(plain.options))
    backward = plain.call.follower(BACKWARD, (out.stride(), None))
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)  # whose strides are not those of views
    for call, tensors in ((plain.call, (*inputs, out, lse)), (backward, (q, k, v, *[None] * 7, out, lse, out, None, *grads, None))):
        if call.words is None:
            call.pack(tensors, numbers[0], **numbers[1])
    load(place(q), (plain.call, backward))


def plain_attention(q, k, v, scale, softcap, sizes, causal, deterministic):
    """attention(q, k, v, window=window(sizes, causal, keys), ...)[0] of (B, L, H, D) with nothing else."""
    if not is_traced(q) and (autocast_dtype(q) or q.dtype) is q.dtype and type(sizes) is tuple:
        grad = is_grad_enabled()
        key = _plain_signature((q, k, v), (scale, softcap, sizes, causal, deterministic, grad))
        plain = _plain_calls.get(key)
        if plain is None:
            if len(_plain_calls) >= _MOST_PLAIN:
                _plain_calls.clear()
            differs = grad and (q.requires_grad or k.requires_grad or v.requires_grad)
            options = (0.0 if scale is None else float(scale), float(softcap), 0.0, *window(sizes, causal, k.shape[1]), not deterministic, 0, 0, differs)
            plain = _plain_calls[key] = _new_plain(q, k, v, options)
            if plain and differs and not is_fake(q):
                _load_with_gradient(plain, q, k, v)
        if plain:
            return _apply_plain(plain, q, k, v) if plain.options[-1] else _run_plain(plain, q, k, v, False)[0]
    return attention(q, k, v, scale=scale, softcap=softcap, window=window(sizes, causal, k.shape[1]), deterministic=deterministic)[0]


# ---- rotary embedding -------------------------------------------------------------------------------------------------
def _fake_rotary(x, cos, sin, offsets, cu_seqlens, flags):
    return torch.empty_like(x)


def _run_rotary(call, x, cos, sin, offsets, cu_seqlens, flags, out=None):
    out = torch.empty_like(x) if out is None else out
    tensors = (x, cos, sin, offsets, cu_seqlens, out)
    if call.words is None:
        call.pack(tensors, flags)
    call.run(tensors)
    return out


def _setup_rotary(ctx, inputs, output):
    _, cos, sin, offsets, cu_seqlens, ctx.flags = inputs
    ctx.save_for_backward(cos, sin, offsets, cu_seqlens)


def _rotary_gradients(ctx, dout):
    inputs = (dout, *ctx.saved_tensors, ctx.flags ^ _INVERSE)
    call = call_after(ctx, ROTARY, dout.stride())
    return (_rotary(*inputs) if call is None else _run_rotary(call, *inputs), None, None, None, None, None)


@custom_op("rotary", _fake_rotary, setup=_setup_rotary, backward=_rotary_gradients, composed=composed.rotary)
def _rotary(x: Tensor, cos: Tensor, sin: Tensor, offsets: Optional[Tensor], cu_seqlens: Optional[Tensor], flags: int) -> Tensor:
    return _run_rotary(Call(ROTARY), x, cos, sin, offsets, cu_seqlens, flags)


_apply_rotary = differentiable("Rotary", _run_rotary, _setup_rotary, _rotary_gradients)


class _RotaryInPlace(torch.autograd.Function):
    """As upstream's, does not mark x as dirty, so that x may be a leaf or one of several views. The gradient is that of the result."""

    @staticmethod
    def forward(ctx, x, cos, sin, offsets, cu_seqlens, flags):
        _run_rotary(Call(ROTARY), x, cos, sin, offsets, cu_seqlens, flags, x)
        ctx.save_for_backward(cos, sin, offsets, cu_seqlens)
        ctx.flags = flags
        return x

    @staticmethod
    def backward(ctx, dout):
        return _rotary(dout, *ctx.saved_tensors, ctx.flags ^ _INVERSE), None, None, None, None, None


def overwrite(x, out):
    """Copies out into x unseen by autograd -> out: an operation in place where operators must be recorded."""
    with torch.no_grad():
        (x.data if is_dynamo() else x).copy_(out)  # in compiled code x may be one of several views; export and torch.func know no .data
    return out


def _check_rotary(x, cos, sin, offsets, cu_seqlens):
    _need_dims("rotary: x", x, cu_seqlens)
    if not is_traced():
        ROTARY.check((x, cos, sin, offsets, cu_seqlens))
    return x, cos, sin, offsets, cu_seqlens


def rotary(x, cos, sin, offsets=0, cu_seqlens=None, interleaved=False, inverse=False, still=False, in_place=False):
    """x (B, L, H, D) or packed (tokens, H, D), rotated by position: index in the sequence + offsets (int, or (B) int32).
    cos, sin (positions, R): rotates the first 2 R features, as pairs (r, r + R), or (2r, 2r + 1) if interleaved.
    still: every token is at the offset."""
    if isinstance(offsets, int):
        if offsets:
            cos, sin = cos[offsets:], sin[offsets:]
        offsets = None
    else:
        offsets = offsets.to(torch.int32)
    length = 1 if still else x.shape[1] if cu_seqlens is None else 0
    if cos.dim() == 2 and cos.shape[0] < length and offsets is None:
        raise RuntimeError("rotary: %d positions of cos and sin for %d tokens" % (cos.shape[0], length))
    tensors = (x, cos, sin, offsets, cu_seqlens)
    flags = (_INTERLEAVED if interleaved else 0) | (_INVERSE if inverse else 0) | (_STILL if still else 0)
    if in_place:
        _check_rotary(*tensors)
        if is_traced(x):
            return overwrite(x, _rotary(*tensors, flags))
        refuse_negative_bit("rotary", x)
        return _RotaryInPlace.apply(*tensors, flags) if x.requires_grad and is_grad_enabled() else _run_rotary(Call(ROTARY), *tensors, flags, x)
    if is_traced(x):
        return _rotary(*_check_rotary(*tensors), flags)
    key = _rotary_signature(tensors, (flags,))
    call = ROTARY.known.get(key)
    if call is None:
        call, tensors = ROTARY.keep(_rotary_signature, (flags,), _check_rotary(*tensors))
    return (_apply_rotary if call.has_gradients and is_grad_enabled() else _run_rotary)(call, *tensors, flags)


# ---- cache ------------------------------------------------------------------------------------------------------------
@custom_op("attention_append", lambda k, *_: torch.empty(k.shape[0], dtype=torch.int32, device=k.device), mutates=("k_cache", "v_cache"))
def append(k: Tensor, v: Tensor, cos: Optional[Tensor], sin: Optional[Tensor], cache_seqlens: Optional[Tensor], cache_batch_idx: Optional[Tensor],
           block_table: Optional[Tensor], k_cache: Tensor, v_cache: Tensor, interleaved: bool) -> Tensor:
    """Appends k and v (B, L, Hk, D) after the cache_seqlens (B) cached tokens, keys rotated by position -> new counts."""
    used = torch.empty(k.shape[0], dtype=torch.int32, device=k.device)
    tensors = (k, v, cos, sin, cache_seqlens, cache_batch_idx, block_table, k_cache, v_cache, used)
    _APPEND.run(tensors, _INTERLEAVED if interleaved else 0)
    return used


def attention_with_cache(q, k_cache, v_cache, k=None, v=None, cos=None, sin=None, cache_seqlens=None, cache_batch_idx=None, leftpad=None, block_table=None,
                         scale=None, causal=False, sizes=(-1, -1), softcap=0.0, interleaved=True, alibi_slopes=None, sinks=None, want_lse=False):
    """Queries (B, L, H, D) over a cache, after appending new keys and values (B, new, Hk, D) -> out, log-sum-exp."""
    if k_cache.stride(-1) != 1 or v_cache.stride(-1) != 1:
        raise RuntimeError("attention: the last dimension of k_cache and v_cache must be contiguous")
    if (k is None) != (v is None) or (cos is None) != (sin is None) or (cos is not None and k is None):
        raise RuntimeError("attention: pass k and v together; rotary_cos and rotary_sin together, and only with k and v")
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    table, rows, leftpad, used = [t if t is None else t.to(torch.int32) for t in (block_table, cache_batch_idx, leftpad, cache_seqlens)]
    left, right = window(sizes, causal, k_cache.shape[1] * (1 if table is None else table.shape[1]))
    if k is not None:
        if used is None:
            raise RuntimeError("attention: k and v need cache_seqlens, their position")
        if cos is not None:
            q = rotary(q, cos, sin, used, interleaved=interleaved, still=(left, right) == (-1, -1))
        used = append(k, v, cos, sin, used, rows, table, k_cache, v_cache, bool(interleaved))
    return attention(q, k_cache, v_cache, seqused_k=used, leftpad_k=leftpad, cache_batch_idx=rows, block_table=table, alibi_slopes=alibi_slopes, sinks=sinks,
                     scale=scale, softcap=softcap, window=(left, right), want_lse=want_lse)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """torch.nn.functional's, for (B, H, L, D) without attn_mask; causal is aligned to the top left, as there."""
    if attn_mask is not None or query.dim() != 4:
        raise RuntimeError("krait: scaled_dot_product_attention needs (B, H, L, D) and no attn_mask; for masks use torch.nn.functional's")
    if not enable_gqa and key.shape[1] != query.shape[1]:
        raise RuntimeError("krait: %d query heads, %d key heads: pass enable_gqa=True" % (query.shape[1], key.shape[1]))
    q, k, v = [t.transpose(1, 2) for t in (query, key, value)]
    sizes = (-1, -1)
    if is_causal:
        k, v = k[:, :q.shape[1]], v[:, :q.shape[1]]
        sizes = (-1, q.shape[1] - k.shape[1])
    return attention(q, k, v, scale=scale, dropout=dropout_p, window=sizes)[0].transpose(1, 2)
