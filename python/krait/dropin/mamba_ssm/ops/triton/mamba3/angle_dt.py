"""Running sums of angles times step sizes in plain torch, under upstream's path."""

import math

import torch


def _ranges(length, cu_seqlens):
    ends = [0, length] if cu_seqlens is None else cu_seqlens.tolist()
    return list(zip(ends, ends[1:]))


def _steps(angle, dt):
    if angle.dim() != 4 or dt.shape != (angle.shape[0], angle.shape[2], angle.shape[1]):
        raise ValueError("angle_dt: angle must be (B, L, H, S) and dt (B, H, L), got %s and %s" % (tuple(angle.shape), tuple(dt.shape)))
    wide = torch.float64 if angle.dtype is torch.float64 else torch.float32
    return torch.tanh(angle.to(wide)) * math.pi, dt.to(wide).transpose(1, 2)[..., None]


def angle_dt_fwd(angle, dt, init_state=None, chunk_size=64, return_output_state=False, cu_seqlens=None):
    """angle (B, L, H, S), dt (B, H, L) -> their sums modulo 2 pi, like angle; with return_output_state also the last of each sequence (n, H, S)."""
    rate, step = _steps(angle, dt)
    out, last = torch.empty_like(rate), []
    for i, (begin, end) in enumerate(_ranges(angle.shape[1], cu_seqlens)):
        start = torch.zeros_like(rate[:, 0]) if init_state is None else init_state.to(rate.dtype) if cu_seqlens is None else init_state[i:i + 1].to(rate.dtype)
        sums = start[:, None] + torch.cumsum(rate[:, begin:end] * step[:, begin:end], 1)
        out[:, begin:end] = sums.remainder(2 * math.pi)
        last.append((sums[:, -1] if end > begin else start).remainder(2 * math.pi))
    out = out.to(angle.dtype)
    return (out, torch.cat(last).to(torch.float32)) if return_output_state else out


def angle_dt_bwd(grad_out, angle, dt, has_init_state=False, chunk_size=64, grad_output_state=None, cu_seqlens=None):
    """-> (dangle, ddt, gradient of the initial state or None)."""
    rate, step = _steps(angle, dt)
    sums, first = torch.zeros_like(rate), []
    for i, (begin, end) in enumerate(_ranges(angle.shape[1], cu_seqlens)):
        later = torch.zeros_like(rate[:, 0]) if grad_output_state is None else grad_output_state if cu_seqlens is None else grad_output_state[i:i + 1]
        sums[:, begin:end] = grad_out[:, begin:end].flip(1).cumsum(1).flip(1) + later[:, None]
        first.append(sums[:, begin] if end > begin else later)
    dangle = sums * step * math.pi * (1 - (rate / math.pi).square())
    return dangle.to(angle.dtype), (sums * rate).sum(-1).transpose(1, 2).to(dt.dtype), torch.cat(first) if has_init_state else None
