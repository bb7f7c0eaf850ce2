"""Mamba-2's state from chunk to chunk, in plain torch."""

import torch

from krait._function import function_by_name


def _state_passing_fwd(states, dA_chunk_cumsum, initial_states=None, seq_idx=None, chunk_size=None, out_dtype=None):
    """states (B, c, H, dim), dA_chunk_cumsum (B, H, c) -> (state before each chunk (B, c, H, dim), state after the last one (B, H, dim) float32).
    With seq_idx the state carries over only if a chunk ends in the same sequence as the one before."""
    state = torch.zeros_like(states[:, 0] if states.shape[1] else states.sum(1), dtype=torch.float32) if initial_states is None else initial_states.float()
    decays, before, previous = torch.exp(dA_chunk_cumsum.float()), [], 0
    for i in range(states.shape[1]):
        before.append(state)
        decay = decays[:, :, i, None]
        if seq_idx is not None:
            last = seq_idx[:, min((i + 1) * chunk_size, seq_idx.shape[1]) - 1]
            decay, previous = decay * (last == previous)[:, None, None], last
        state = decay * state + states[:, i].float()
    out = torch.stack(before, dim=1) if before else states
    return out.to(states.dtype if out_dtype is None else out_dtype), state


def _state_passing_bwd(states, dA_chunk_cumsum, dout, dfinal_states=None, seq_idx=None, has_initial_states=None, dstates_dtype=None, states_dtype=None,
                       chunk_size=None):
    """states: those before each chunk, the forward's result; dout, dfinal_states: gradients of its results -> gradients of its states, of
    dA_chunk_cumsum, of the initial states (None without them)[, the states in states_dtype]."""
    decays = torch.exp(dA_chunk_cumsum.float())
    if seq_idx is not None:
        ends = seq_idx[:, [min((i + 1) * chunk_size, seq_idx.shape[1]) - 1 for i in range(states.shape[1])]]
        decays = decays * (ends == torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], dim=1))[:, None]
    grad = torch.zeros_like(states[:, 0], dtype=torch.float32) if dfinal_states is None else dfinal_states.float()
    dstates, ddA = [], []
    for i in reversed(range(states.shape[1])):
        dstates.append(grad)
        ddA.append((grad * states[:, i].float()).sum(-1) * decays[:, :, i])
        grad = grad * decays[:, :, i, None] + dout[:, i].float()
    dtype = states.dtype if dstates_dtype is None else dstates_dtype
    found = torch.stack(dstates[::-1], dim=1).to(dtype), torch.stack(ddA[::-1], dim=2), grad if has_initial_states else None
    return found if states_dtype is None else (*found, states.to(states_dtype))


def state_passing(states, dA_chunk_cumsum, initial_states=None):
    """-> (state before each chunk, state after the last one)."""
    return _state_passing_fwd(states, dA_chunk_cumsum, initial_states)


state_passing_ref = state_passing
StatePassingFn = function_by_name("StatePassingFn", state_passing)
