"""One token of Mamba 3's scan on turned keys and queries, under upstream's path; nothing here needs CuTe."""

import torch

from krait.ops import mamba3_step


def mamba3_step_fn(state, Bstate, Xstate, A, B, C, D, x, dt, trap, xproj, outproj=None, state_out=None, out=None, z=None, zproj=None, tile_D=64, num_warps=2):
    """state (B, H, P, N), Bstate, B, C (B, R, H, N), Xstate, x, z (B, H, P), A (not times dt), dt, trap (after its sigmoid) (B, H), xproj, zproj, outproj
    (R, H, P). Writes out (B, H, P), or without outproj (B, R, H, P), and state, or state_out if it is given."""
    batch, ranks, heads, n = B.shape
    if z is not None and zproj is None:
        raise ValueError("mamba3_step_fn: z is given without zproj")
    rows = () if outproj is not None else (ranks,)
    if out is None or out.shape != (batch, *rows, heads, x.shape[2]):
        raise ValueError("mamba3_step_fn: out must be %s, got %s" % ((batch, *rows, heads, x.shape[2]), None if out is None else tuple(out.shape)))
    if state_out is not None:
        state_out.copy_(state)
    target = state if state_out is None else state_out
    none = torch.zeros(heads, ranks, n, device=x.device)
    factors = [None if t is None else t.transpose(0, 1) for t in (xproj, zproj, outproj)]
    d = dt.to(torch.float32)
    empty = x.new_empty(batch, heads, 0, dtype=torch.float32)
    result = mamba3_step(empty, target, Bstate.clone(), Xstate.clone(), x, A.to(torch.float32) * d, d, torch.logit(trap.to(torch.float32)), B.flatten(1, 2),
                         C.flatten(1, 2), none, none, empty, D, z, factors[0], None if z is None else factors[1], factors[2], halves=True)
    out.copy_(result.view(out.shape))


def selective_state_update_fused_ref_v2(state, A, B, C, xproj, x, zproj, z, dt, B_state, x_state, trap, D, outproj, compute_dtype=torch.float32):
    """The step in plain torch -> (out, new state) in state's type."""
    dtype = state.dtype
    state, A, B, C, xproj, x, dt, B_state, x_state, trap, D = [
        t.to(compute_dtype) for t in (state, A, B, C, xproj, x, dt, B_state, x_state, trap, D)]
    alpha = torch.exp(A * dt)
    last, now = x_state[:, None] * xproj, x[:, None] * xproj
    state = (state * alpha[..., None, None] + torch.einsum("bh,brhp,brhn->bhpn", (1 - trap) * dt * alpha, last, B_state)
             + torch.einsum("bh,brhp,brhn->bhpn", trap * dt, now, B))
    y = torch.einsum("bhpn,brhn->brhp", state, C) + D[:, None] * now
    if z is not None:
        y = y * torch.nn.functional.silu(z.to(compute_dtype)[:, None] * zproj.to(compute_dtype))
    out = y if outproj is None else (y * outproj.to(compute_dtype)).sum(1)
    return out.to(dtype), state.to(dtype)
