"""Convolution states of packed sequences."""

import torch

from krait.ops import causal_conv1d_varlen_states as _states


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """x (total, D), cu_seqlens (S+1) -> (S, D, state_len): the last inputs of each sequence, zeros on the left."""
    return _states(x, cu_seqlens, state_len)


def causal_conv1d_varlen_states_ref(x, cu_seqlens, state_len):
    """The same in plain torch."""
    ends = cu_seqlens.tolist()
    states = x.new_zeros(len(ends) - 1, state_len, x.shape[1])
    for i, (begin, end) in enumerate(zip(ends, ends[1:])):
        kept = x[max(begin, end - state_len):end]
        states[i, state_len - kept.shape[0]:] = kept
    return states.transpose(1, 2)
