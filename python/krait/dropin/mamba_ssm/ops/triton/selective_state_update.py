"""selective_state_update under upstream's path; nothing here needs Triton."""

import torch
import torch.nn.functional as F

from krait.ops import state_update as _state_update


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """One decoding step: state (B, D, N) or (B, H, P, N) is updated in place -> out (B, D) or (B, H, P).

    D, z and dt_bias may be None. state_batch_indices (B) int32 selects rows of a larger state; negative: skip."""
    return _state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices)


def selective_state_update_ref(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    """The step in plain torch."""
    has_heads = state.dim() == 4
    if not has_heads:
        state4, x, dt, B, C, z = [t if t is None else t.unsqueeze(1) for t in (state, x, dt, B, C, z)]
        A, D, dt_bias = [t if t is None else t.unsqueeze(0) for t in (A, D, dt_bias)]
    else:
        state4 = state
    repeats = state4.shape[1] // B.shape[1]
    B, C = B.repeat_interleave(repeats, dim=1), C.repeat_interleave(repeats, dim=1)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    state4.copy_(state4 * torch.exp(dt[..., None] * A) + dt[..., None] * B[:, :, None, :] * x[..., None])
    out = torch.einsum("bhpn,bhn->bhp", state4.to(C.dtype), C)
    out = out if D is None else out + (x * D).to(out.dtype)
    out = (out if z is None else out * F.silu(z)).to(x.dtype)
    return out if has_heads else out.squeeze(1)
