"""The operators in plain torch: for float64 on a CPU, torch.func and derivatives of derivatives. Slow (loops over time), differentiable any number
of times, in float64 if a tensor is, else in float32. Arguments and results are those of torch.ops.krait's operators, None where they have none."""

import math

import torch
import torch.nn.functional as F


def _wide(*tensors):
    """The tensors in the type of the computation; integers stay."""
    given = [t for t in tensors if t is not None]
    real = torch.float64 if any([t.dtype in (torch.float64, torch.complex128) for t in given]) else torch.float32
    kinds = {True: torch.complex128 if real is torch.float64 else torch.complex64, False: real}
    return [t if t is None or not (t.is_complex() or t.is_floating_point()) else t.to(kinds[t.is_complex()]) for t in tensors]


def _refuse(name, **unsupported):
    for option, given in unsupported.items():
        if given:
            raise RuntimeError("krait: %s in plain torch (float64, torch.func, krait.ops.in_plain_torch) has no %s" % (name, option))


def _flip(on, dim, *tensors):
    return [t.flip(dim) if on and t is not None else t for t in tensors]


def causal_conv1d(x, weight, bias, seq_idx, initial_states, silu, reverse, want_final):
    dtype, width, length = x.dtype, weight.shape[1], x.shape[2]
    x, weight, bias, before = _wide(x, weight, bias, initial_states)
    x, = _flip(reverse, 2, x)
    seq_idx, = _flip(reverse, 1, seq_idx)
    before = x.new_zeros(x.shape[0], x.shape[1], width - 1) if before is None else before
    padded, out = torch.cat((before, x), 2), torch.zeros_like(x)
    for k in range(width):
        tap = padded[:, :, k:k + length] * weight[:, k, None]
        if seq_idx is not None:
            source = F.pad(seq_idx, (width - 1, 0), value=-1)[:, k:k + length]
            tap = tap * ((source == seq_idx) & (seq_idx >= 0))[:, None]
        out = out + tap
    out = out if bias is None else out + bias[:, None]
    out = F.silu(out) if silu else out
    out = out if seq_idx is None else out * (seq_idx >= 0)[:, None]
    return _flip(reverse, 2, out)[0].to(dtype), padded[:, :, length:].to(dtype) if want_final else None


def _per_channel(t, dim, length, is_complex):
    """B or C as (B, D, N, L)."""
    if is_complex and t.dim() > 2:
        t = torch.view_as_complex(t.reshape(*t.shape[:-1], length, 2).contiguous())
    if t.dim() == 2:
        return t[None, :, :, None].expand(-1, -1, -1, length)
    t = t.unsqueeze(1) if t.dim() == 3 else t
    return t.repeat_interleave(dim // t.shape[1], dim=1)


def _continues(seq_idx, t):
    """Whether token t belongs to its predecessor's sequence."""
    return seq_idx[:, t] == seq_idx[:, t - 1]


def _recurrence(u, d, A, B, C, state, seq_idx, reverse):
    """-> y (B, D, L) without D u and the gate, the last state."""
    u, d, B, C = _flip(reverse, -1, u, d, B, C)
    seq_idx, = _flip(reverse, 1, seq_idx)
    outs = []
    for t in range(u.shape[2]):
        if seq_idx is not None and t > 0:
            state = state * _continues(seq_idx, t)[:, None, None]
        state = torch.exp(d[:, :, t, None] * A) * state + (d[:, :, t] * u[:, :, t])[..., None] * B[..., t]
        y = (state * C[..., t]).sum(-1)
        outs.append(2 * y.real if y.is_complex() else y)
    y = torch.stack(outs, 2) if outs else torch.zeros_like(u)
    return _flip(reverse, 2, y)[0], state


def selective_scan(u, delta, A, B, C, D, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse, softplus, reverse, want_last):
    if cu_seqlens is not None:
        return _scan_of_sequences(u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens, softplus, reverse, want_last)
    dtype, (batch, dim, length) = u.dtype, u.shape
    u, delta, A, B, C, D, z, delta_bias, initial_state, A_reverse = _wide(u, delta, A, B, C, D, z, delta_bias, initial_state, A_reverse)
    d = delta if delta_bias is None else delta + delta_bias[:, None]
    d = F.softplus(d) if softplus else d
    B, C = [_per_channel(t, dim, length, A.is_complex()) for t in (B, C)]
    state = A.new_zeros(batch, dim, A.shape[1]) if initial_state is None else initial_state
    y, last = _recurrence(u, d, A, B, C, state, seq_idx, reverse)
    if A_reverse is not None:
        y = y + _recurrence(u, d, A_reverse, B, C, torch.zeros_like(state), None, True)[0]
    y = y if D is None else y + D[:, None] * u
    y = y if z is None else y * F.silu(z)
    y = y if seq_idx is None else y * (seq_idx >= 0)[:, None]
    return y.to(dtype), last if want_last else None


def _scan_of_sequences(u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens, softplus, reverse, want_last):
    ends, outs, states = cu_seqlens.tolist(), [], []
    for s, (begin, end) in enumerate(zip(ends, ends[1:])):
        part = [t if t is None or t.dim() == 2 else t[..., begin * n:end * n] for t, n in
                ((u, 1), (delta, 1), (B, 2 if A.is_complex() else 1), (C, 2 if A.is_complex() else 1), (z, 1))]
        first = None if initial_state is None else initial_state[s:s + 1]
        out, state = selective_scan(part[0], part[1], A, part[2], part[3], D, part[4], delta_bias, first, None, None, None, softplus, reverse, True)
        outs.append(out), states.append(state)
    return torch.cat(outs, 2), torch.cat(states) if want_last else None


def _chunks(t, chunk):
    """(B, L, H, D) -> (B, H, L / chunk, chunk, D), in zeros up to a whole chunk."""
    b, length, heads, d = t.shape
    return F.pad(t, (0, 0, 0, 0, 0, -length % chunk)).reshape(b, -1, chunk, heads, d).permute(0, 3, 1, 2, 4)


def _delta_gates(a, b, A, dt_bias, key_decay, sigmoid, beta_scale):
    """-> the logarithms of the decays (B, L, H, 1) or (B, L, H, Dk), beta (B, L, H, 1)."""
    decay = torch.zeros_like(b) if a is None else a
    if A is not None:
        decay = A * F.softplus(decay if dt_bias is None else decay + dt_bias)
    decay = decay[..., None] if key_decay is None else decay[..., None] + key_decay
    return decay, beta_scale * (torch.sigmoid(b) if sigmoid else b)[..., None]


def _products_within(x, k, between):
    """x_t^T diag(between_ts) k_s of the tokens of each chunk."""
    if between.shape[-1] == 1:
        return (x @ k.mT) * between[..., 0]
    return torch.einsum("...td,...sd,...tsd->...ts", x, k, between)


def gated_delta_rule(q, k, v, a, b, A, dt_bias, key_decay, initial_states, normalize, sigmoid, beta_scale, eps, want_final):
    """By chunks: the changes u of a chunk's tokens, from the state S before it, solve (I + beta tril(K K^T, -1)) u = beta (v - K S), with the
    decays between two tokens in each product."""
    dtype, (batch, length, heads, _) = v.dtype, v.shape
    q, k, v, a, b, A, dt_bias, key_decay, state = _wide(q, k, v, a, b, A, dt_bias, key_decay, initial_states)
    if normalize:
        q, k = [t * torch.rsqrt(t.square().sum(-1, keepdim=True) + eps) for t in (q, k)]
    q = q * q.shape[3] ** -0.5
    state = v.new_zeros(batch, heads, k.shape[3], v.shape[3]) if state is None else state
    decay, beta = _delta_gates(a, b, A, dt_bias, key_decay, sigmoid, beta_scale)
    chunk = 64 if key_decay is None else 16  # decays of keys: a product of them for every pair of tokens
    q, k, v, decay, beta = [_chunks(t, chunk) for t in (*[t.repeat_interleave(heads // t.shape[2], 2) for t in (q, k)], v, decay, beta)]
    total = decay.cumsum(3)
    later = v.new_ones((chunk, chunk), dtype=torch.bool).triu(1)
    between = (total[..., :, None, :] - total[..., None, :, :]).masked_fill(later[..., None], -math.inf).exp()
    reads = torch.linalg.solve_triangular(beta * _products_within(k, k, between), torch.cat((beta * v, beta * total.exp() * k), 4), upper=False, unitriangular=True)
    reads, of_state = reads.split((v.shape[4], k.shape[4]), 4)
    asked, within = total.exp() * q, _products_within(q, k, between)
    left, after = (total[..., -1:, :] - total).exp() * k, total[..., -1, :, None].exp()
    outs = []
    for i in range(v.shape[2]):
        change = reads[:, :, i] - of_state[:, :, i] @ state
        outs.append(asked[:, :, i] @ state + within[:, :, i] @ change)
        state = after[:, :, i] * state + left[:, :, i].mT @ change
    out = (torch.cat(outs, 2) if outs else reads.flatten(2, 3))[:, :, :length].transpose(1, 2)
    return out.to(dtype), state if want_final else None


def ssd(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, softplus, reverse, low, high, want_final):
    dtype, (batch, length, heads, p) = x.dtype, x.shape
    x, dt, A, B, C, D, z, dt_bias, state = _wide(x, dt, A, B, C, D, z, dt_bias, initial_states)
    d = dt if dt_bias is None else dt + dt_bias
    d = F.softplus(d) if softplus else d
    d = d if softplus and (low, high) == (0.0, math.inf) else d.clamp(low, high)
    B, C = [t.repeat_interleave(heads // t.shape[2], dim=2) for t in (B, C)]
    state = x.new_zeros(batch, heads, p, B.shape[3]) if state is None else state
    xs, ds, Bs, Cs, index = _flip(reverse, 1, x, d, B, C, seq_idx)
    outs, states = [], []
    for t in range(length):
        if index is not None:
            state = state * (_continues(index, t) if t else index[:, 0] == 0)[:, None, None, None]
        state = torch.exp(ds[:, t] * A)[..., None, None] * state + (ds[:, t, :, None] * xs[:, t])[..., None] * Bs[:, t, :, None]
        outs.append((state * Cs[:, t, :, None]).sum(-1))
        states.append(state)
    y = _flip(reverse, 1, torch.stack(outs, 1) if outs else torch.zeros_like(x))[0]
    y = y if D is None else y + x * (D if D.dim() == 2 else D[:, None])
    y = y if z is None else y * F.silu(z)
    y = y if seq_idx is None else y * (seq_idx >= 0)[:, :, None, None]
    if index is not None and length:
        state = state * (index[:, -1] >= 0)[:, None, None, None]
    return y.to(dtype), state if want_final else None, _selected(states, cu_seqlens)


def _turned(v, angles, halves):
    """v (B, R, H, N) with its pairs turned by angles (B, H, M)."""
    m, n = angles.shape[-1], v.shape[-1]
    first = torch.arange(m, device=v.device) * (1 if halves else 2)
    second = first + (n // 2 if halves else 1)
    c, s, i, j = torch.cos(angles)[:, None], torch.sin(angles)[:, None], v[..., first], v[..., second]
    return v.index_copy(-1, first, c * i - s * j).index_copy(-1, second, s * i + c * j)


def _mamba3_sequence(x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, factors, D, states, halves):
    """y (B, n, R, H, P) and the states after the tokens; B and C (B, n, R, H, N)."""
    angle, state, k, v = states
    xs, ys = lambda v: v[:, None] * factors, []  # (B, R, H, P)
    for t in range(x.shape[1]):
        d, alpha, own = dt[:, t, :, None, None], torch.exp(log_decay[:, t])[..., None, None], torch.sigmoid(trap[:, t])[..., None, None]
        angle = angle + math.pi * torch.tanh(angles[:, t]) * dt[:, t, :, None]
        q = _turned(C[:, t] + C_bias, angle, halves)
        before = torch.einsum("brhp,brhn->bhpn", xs(v), k)
        k, v = _turned(B[:, t] + B_bias, angle, halves), x[:, t]
        state = alpha * state + (1 - own) * d * alpha * before + own * d * torch.einsum("brhp,brhn->bhpn", xs(v), k)
        y = torch.einsum("bhpn,brhn->brhp", state, q)
        ys.append(y if D is None else y + D[:, None] * xs(v))
    y = torch.stack(ys, 1) if ys else x.new_zeros(x.shape[0], 0, k.shape[1], *x.shape[2:])
    return y, (angle.remainder(2 * math.pi), state, k, v)


def mamba3(x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, initial_angles, initial_states, initial_B, initial_x,
           cu_seqlens, halves, reverse, eps, want_final):
    dtype, (batch, length, heads, p) = x.dtype, x.shape
    x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, *states = _wide(
        x, log_decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm_weight, initial_angles, initial_states, initial_B, initial_x)
    ranks, n = B_bias.shape[1], B.shape[3]
    groups = B.shape[2] // ranks
    B, C = [t.reshape(batch, length, ranks, groups, n).repeat_interleave(heads // groups, dim=3) for t in (B, C)]
    B_bias, C_bias = B_bias.transpose(0, 1), C_bias.transpose(0, 1)
    angles = angles.expand(-1, -1, heads, -1)
    factors = x.new_ones(ranks, heads, p) if mimo_x is None else mimo_x.transpose(0, 1)
    timed = _flip(reverse, 1, x, log_decay, dt, trap, B, C, angles)
    ends = [0, length] if cu_seqlens is None else cu_seqlens.tolist()
    rows = batch if cu_seqlens is None else len(ends) - 1
    if states[0] is None:
        states = [x.new_zeros(rows, heads, angles.shape[3]), x.new_zeros(rows, heads, p, n), x.new_zeros(rows, ranks, heads, n), x.new_zeros(rows, heads, p)]
    ys, finals = [], []
    for i, (begin, end) in enumerate(zip(ends, ends[1:])):
        own = states if cu_seqlens is None else [s[i:i + 1] for s in states]
        X, a, d, tr, b, c, w = [t[:, begin:end] for t in timed]
        y, final = _mamba3_sequence(X, a, d, tr, b, c, B_bias, C_bias, w, factors, D, own, halves)
        ys.append(y)
        finals.append(final)
    y = _flip(reverse, 1, torch.cat(ys, 1))[0]
    y = y if norm_weight is None else y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * norm_weight
    y = y if z is None else y * F.silu(z[:, :, None] * (1 if mimo_z is None else mimo_z.transpose(0, 1)))
    out = y.flatten(2, 3) if mimo_o is None else (y * mimo_o.transpose(0, 1)).sum(2)
    finals = [torch.cat(parts) for parts in zip(*finals)] if want_final else [None] * 4
    return (out.to(dtype), *finals)


def _selected(states, cu_seqlens):
    """The state after each sequence, 0 for an empty one."""
    if cu_seqlens is None:
        return None
    ends = cu_seqlens.tolist()
    return torch.cat([states[end - 1] if end > begin else torch.zeros_like(states[0]) for begin, end in zip(ends, ends[1:])])


def _attend(q, k, v, slopes, sinks, n_q, n_k, scale, softcap, left, right):
    """q (B, L, H, D), k, v (B, M, H, .); n_q, n_k (B): used ones -> out, log-sum-exp (B, H, L)."""
    i, j = torch.arange(q.shape[1], device=q.device)[:, None], torch.arange(k.shape[1], device=q.device)[None]
    n_q, n_k = n_q[:, None, None, None], n_k[:, None, None, None]
    at = i + n_k - n_q
    s = torch.einsum("blhd,bmhd->bhlm", q, k) * (scale or q.shape[-1] ** -0.5)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    if slopes is not None:
        s = s - slopes.reshape(-1, slopes.shape[-1], 1, 1) * (at - j).abs()
    seen = (j < n_k) & (i < n_q)
    seen = seen & (j >= at - left) if left >= 0 else seen
    seen = seen & (j <= at + right) if right >= 0 else seen
    any_seen = seen.any(-1, keepdim=True)
    s = torch.where(seen, s, s.new_full((), -math.inf))
    s = torch.where(any_seen, s, s.new_zeros(()))
    lse = torch.logsumexp(s, -1, keepdim=True)
    lse = lse if sinks is None else torch.logaddexp(lse, sinks[None, :, None, None].expand_as(lse))
    p = torch.exp(s - lse) * any_seen
    lse = torch.where(any_seen, lse, lse.new_full((), math.inf)).squeeze(-1)
    return torch.einsum("bhlm,bmhd->blhd", p, v), lse


def attention(q, k, v, cu_q, cu_k, used_q, used_k, leftpad_k, cache_batch_idx, block_table, slopes, sinks, rng, scale, softcap, dropout, left, right,
              any_order, max_q, max_k, want_lse):
    _refuse("attention", dropout=dropout > 0.0, leftpad_k=leftpad_k is not None, cache_batch_idx=cache_batch_idx is not None, block_table=block_table is not None)
    dtype = q.dtype
    q, k, v, slopes, sinks = _wide(q, k, v, slopes, sinks)
    each = q.shape[-2] // k.shape[-2]
    k, v = [t.repeat_interleave(each, dim=-2) for t in (k, v)]
    options = (scale, softcap, left, right)
    if cu_q is None and cu_k is None:
        full = [torch.full((q.shape[0],), t.shape[1], device=q.device) if used is None else used.long() for t, used in ((q, used_q), (k, used_k))]
        out, lse = _attend(q, k, v, slopes, sinks, *full, *options)
        return out.to(dtype), lse if want_lse else None
    ends = [torch.arange(t.shape[0] + 1).mul(t.shape[1]).tolist() if cu is None else cu.tolist() for t, cu in ((q, cu_q), (k, cu_k))]
    q, k, v = [t.flatten(0, 1) if t.dim() == 4 else t for t in (q, k, v)]
    outs, lses = [], []
    for b in range(len(ends[0]) - 1):
        parts = [t[None, e[b]:e[b + 1]] for t, e in ((q, ends[0]), (k, ends[1]), (v, ends[1]))]
        full = [torch.full((1,), t.shape[1], device=q.device) if used is None else used[b:b + 1].long() for t, used in ((parts[0], used_q), (parts[1], used_k))]
        out, lse = _attend(*parts, slopes if slopes is None or slopes.dim() == 1 else slopes[b], sinks, *full, *options)
        outs.append(out[0]), lses.append(lse[0])
    out, lse = torch.cat(outs), torch.cat(lses, 1)
    if cu_q is None:
        out, lse = out.unflatten(0, (len(ends[0]) - 1, -1)), lse.unflatten(1, (len(ends[0]) - 1, -1)).transpose(0, 1)
    return out.to(dtype), lse if want_lse else None


def rotary(x, cos, sin, offsets, cu_seqlens, flags):
    interleaved, inverse, still = flags & 1, flags & 2, flags & 4
    dtype, length = x.dtype, x.shape[-3]
    x, cos, sin = _wide(x, cos, sin)
    at = torch.arange(length, device=x.device)
    if cu_seqlens is not None:
        sequence = torch.searchsorted(cu_seqlens.long(), at, right=True) - 1
        at = at - cu_seqlens.long()[sequence]
        at = at if offsets is None else at + offsets.long()[sequence]
    else:
        at = torch.zeros_like(at) if still else at
        at = at if offsets is None else at + offsets.long()[:, None]
    cos, sin = [t[at].unsqueeze(-2) for t in (cos, sin)]
    sin, r = -sin if inverse else sin, cos.shape[-1]
    head, rest = x[..., :2 * r], x[..., 2 * r:]
    a, b = (head[..., ::2], head[..., 1::2]) if interleaved else (head[..., :r], head[..., r:])
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.cat((torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1), rest), -1).to(dtype)


def _norm(v, weight, bias, eps, rms):
    v = v if rms else v - v.mean(-1, keepdim=True)
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    v = v if weight is None else v * weight
    return v if bias is None else v + bias


def add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale, eps, rms, sum_in_fp32, want_sum):
    dtype, kind = x.dtype, residual.dtype if residual is not None else torch.float32 if sum_in_fp32 and x.dtype is not torch.float64 else x.dtype
    v, weight, bias, residual, x1, weight1, bias1, rowscale = _wide(x, weight, bias, residual, x1, weight1, bias1, rowscale)
    v = v if rowscale is None else v * rowscale[:, None]
    for t in (x1, residual):
        v = v if t is None else v + t
    out1 = None if weight1 is None else _norm(v, weight1, bias1, eps, rms).to(dtype)
    return _norm(v, weight, bias, eps, rms).to(dtype), out1, v.to(kind) if want_sum else None


def gated_norm(x, z, weight, bias, eps, group_size, rms, norm_before_gate):
    dtype = x.dtype
    x, z, weight, bias = _wide(x, z, weight, bias)
    gate = 1 if z is None else F.silu(z)
    v = x if norm_before_gate else x * gate
    v = _norm(v.unflatten(1, (-1, group_size)), None, None, eps, rms).flatten(1) * weight
    v = v if bias is None else v + bias
    return (v * gate if norm_before_gate else v).to(dtype)


def state_update(state, x, dt, A, B, C, D, z, dt_bias, indices, softplus):
    """In place on the state."""
    _refuse("state_update", state_batch_indices=indices is not None)
    dtype, has_heads = x.dtype, state.dim() == 4
    s, x, dt, A, B, C, D, z, dt_bias = _wide(state.clone(), x, dt, A, B, C, D, z, dt_bias)
    if not has_heads:
        s, x, dt, B, C, z = [t if t is None else t.unsqueeze(1) for t in (s, x, dt, B, C, z)]
    each = s.shape[1] // B.shape[1]
    B, C = [t.repeat_interleave(each, dim=1) for t in (B, C)]
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if softplus else dt
    s = s * torch.exp(dt[..., None] * A) + (dt * x)[..., None] * B[:, :, None]
    out = (s * C[:, :, None]).sum(-1)
    out = out if D is None else out + x * D
    out = out if z is None else out * F.silu(z)
    state.copy_(s if has_heads else s.squeeze(1))
    return (out if has_heads else out.squeeze(1)).to(dtype)


def causal_conv1d_update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    """In place on the state."""
    _refuse("causal_conv1d_update", cache_seqlens=cache_seqlens is not None, conv_state_indices=conv_state_indices is not None)
    rows = x if x.dim() == 3 else x.unsqueeze(-1)
    known = torch.cat((conv_state, rows), 2)
    before = known[:, :, conv_state.shape[2] - weight.shape[1] + 1:conv_state.shape[2]]
    out = causal_conv1d(rows, weight, bias, None, before, silu, False, False)[0]
    conv_state.copy_(known[:, :, -conv_state.shape[2]:])
    return out if x.dim() == 3 else out.squeeze(-1)
