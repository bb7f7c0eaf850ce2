"""The functions below autograd, as newer releases name them."""

from krait.ops.causal_conv1d import run_backward, run_forward, run_update

import torch


def causal_conv1d_fwd_function(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    out = torch.empty_like(x)
    run_forward(x, weight, bias, seq_idx, initial_states, silu_activation, False, out, final_states_out)
    return out


def causal_conv1d_bwd_function(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states,
                               silu_activation):
    dx = torch.empty_like(x) if dx is None else dx
    dweight, dbias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    wants_initial = return_dinitial_states and initial_states is not None
    dinitial = torch.empty_like(initial_states) if wants_initial else None
    run_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal_states, silu_activation, False, dx, dweight, dbias,
                 dinitial)
    return dx, dweight, dbias, dinitial


def causal_conv1d_update_function(x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices):
    out = torch.empty_like(x)
    rows, out3 = (x.unsqueeze(-1), out.unsqueeze(-1)) if x.dim() == 2 else (x, out)
    run_update(rows, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices, out3)
    return out
