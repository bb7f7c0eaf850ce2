"""The scan of Mamba 2 (SSD): per head h of P channels, with B and C of its group,

    d = clamp(softplus(dt + dt_bias)); S = exp(d A) S + d x (outer) B; y = S C + D x; y *= silu(z).

Composed of the selective scan, to which every channel is its own: dt and A of a head are repeated over its channels and states. `ssd` is
the one door: an operator for it takes its place there, and nothing else changes."""

import math

import torch
import torch.nn.functional as F

from .selective_scan import as_parameter, selective_scan

_NO_LIMIT = (0.0, math.inf)


def _refuse(tensors):
    given = ", ".join("%s %s" % (name, tuple(t.shape)) for name, t in tensors.items() if t is not None)
    raise RuntimeError("ssd: x and z must be (B, L, H, P), dt (B, L, H), A and dt_bias (H), B and C (B, L, G, N) with H a multiple of G, D (H) or "
                       "(H, P), initial_states (B, H, P, N), seq_idx (B, L) int32, cu_seqlens (sequences + 1) int32; got " + given)


def _check(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens):
    good = x.dim() == 4 and B.dim() == 4
    if good:
        b, length, h, p = x.shape
        groups, n = B.shape[2:]
        good = (dt.shape == (b, length, h) and A.shape == (h,) and B.shape[:2] == (b, length) and C.shape == B.shape and groups > 0 and h % groups == 0
                and (D is None or D.shape == (h,) or D.shape == (h, p)) and (z is None or z.shape == x.shape) and (dt_bias is None or dt_bias.shape == (h,))
                and (initial_states is None or initial_states.shape == (b, h, p, n)) and (seq_idx is None or seq_idx.shape == (b, length))
                and (cu_seqlens is None or cu_seqlens.dim() == 1))
    if not good:
        _refuse(dict(x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states, seq_idx=seq_idx, cu_seqlens=cu_seqlens))


def _check_modes(x, seq_idx, cu_seqlens, dt_limit, return_varlen_states):
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise RuntimeError("ssd: dt_limit must be (low, high) with low <= high, got %s" % (tuple(dt_limit),))
    if cu_seqlens is not None and x.shape[0] != 1:
        raise RuntimeError("ssd: cu_seqlens needs a batch of 1 that holds all sequences, got a batch of %d" % x.shape[0])
    if return_varlen_states and cu_seqlens is None:
        raise RuntimeError("ssd: return_varlen_states needs cu_seqlens")


def time_steps(dt, dt_bias, dt_softplus, dt_limit):
    """d (B, L, H) in float32. Without a limit a step that softplus did not make is still clamped at 0, as upstream's kernels do."""
    d = dt.to(torch.float32)
    d = d if dt_bias is None else d + dt_bias.to(torch.float32)
    d = F.softplus(d) if dt_softplus else d
    return d if dt_softplus and tuple(dt_limit) == _NO_LIMIT else d.clamp(*dt_limit)


def _channels(t):
    """(B, L, H, P) -> (B, H P, L), token after token in memory."""
    return t.flatten(2).transpose(1, 2)


def _first_state(initial_states, seq_idx):
    """(B, H P, N): only a first segment of index 0 goes on from the states given."""
    if initial_states is None:
        return None
    state = initial_states.flatten(1, 2).to(torch.float32)
    return state if seq_idx is None or seq_idx.shape[1] == 0 else state * (seq_idx[:, 0] == 0)[:, None, None]


def _as_heads(state, heads):
    return state.unflatten(1, (heads, state.shape[1] // heads))


def ssd(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=_NO_LIMIT,
        return_final_states=False, return_varlen_states=False, chunk_size=None, reverse=False):
    """x (B, L, H, P), dt (B, L, H), A (H), B and C (B, L, G, N), D (H) or (H, P) -> out like x, final states (B, H, P, N) float32, varlen states
    (sequences, H, P, N) float32; the states are None where they are not asked for.

    seq_idx (B, L) int32, rising: the state starts again where it changes, initial_states reach only index 0, and after a last index below 0 the final
    state is 0. cu_seqlens (sequences + 1) int32, for a batch of 1, keeps nothing apart: it says of which tokens the varlen states are, each
    that of its sequence alone, without gradient. chunk_size is a hint that no result depends on. reverse lets time run backwards."""
    _check(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens)
    _check_modes(x, seq_idx, cu_seqlens, dt_limit, return_varlen_states)
    _, _, h, p = x.shape
    n = B.shape[3]
    u, gate = _channels(x), None if z is None else _channels(z)
    delta = _channels(time_steps(dt, dt_bias, dt_softplus, dt_limit).unsqueeze(3).expand(-1, -1, -1, p))
    A = A.to(torch.float32).repeat_interleave(p).unsqueeze(1).expand(-1, n)
    B, C = B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1)
    D = None if D is None else as_parameter(D.repeat_interleave(p) if D.dim() == 1 else D.flatten(), torch.float32)
    first = _first_state(initial_states, seq_idx)
    result = selective_scan(u, delta, A, B, C, D, gate, return_last_state=return_final_states, initial_states=first, seq_idx=seq_idx, reverse=reverse)
    out, final = result if return_final_states else (result, None)
    if final is not None:
        if seq_idx is not None and seq_idx.shape[1] > 0:
            final = final * (seq_idx[:, 0 if reverse else -1] >= 0)[:, None, None]
        final = _as_heads(final, h)
    varlen = None
    if return_varlen_states:
        with torch.no_grad():
            varlen = _as_heads(_states_of_sequences(u, delta, A, B, C, first, cu_seqlens, reverse), h)
    return out.transpose(1, 2).unflatten(2, (h, p)), final, varlen


def _states_of_sequences(u, delta, A, B, C, first, cu_seqlens, reverse):
    """The last state of each sequence by itself; the first one goes on from `first`."""
    if first is not None:
        others = first.new_zeros(cu_seqlens.shape[0] - 2, *first.shape[1:])
        first = torch.cat([others, first] if reverse else [first, others])
    _, last = selective_scan(u, delta, A, B, C, return_last_state=True, initial_states=first, cu_seqlens=cu_seqlens.to(torch.int32), reverse=reverse)
    return last
