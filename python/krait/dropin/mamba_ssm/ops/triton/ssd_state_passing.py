"""Mamba-2's state from chunk to chunk, in plain torch."""

import torch


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


def state_passing(states, dA_chunk_cumsum, initial_states=None):
    """-> (state before each chunk, state after the last one)."""
    return _state_passing_fwd(states, dA_chunk_cumsum, initial_states)


state_passing_ref = state_passing
