"""causal_conv1d_fn and causal_conv1d_update with upstream's signatures, references, and krait's keyword-only options."""

import torch
import torch.nn.functional as F

from krait._function import function_by_name
from krait.ops import causal_conv1d as _causal_conv1d
from krait.ops import causal_conv1d_update as _causal_conv1d_update


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
                     final_states_out=None, activation=None, *, reverse=False):
    """x (B, D, L), weight (D, W) -> out (B, D, L)[, final states (B, D, W-1)].

    seq_idx (B, L) int32 separates packed sequences; initial_states (B, D, W-1) are the inputs before position 0, of the first sequence;
    activation is None, "silu" or "swish". As in the oldest releases, a string as fourth argument is the activation.
    reverse=True (krait only) runs backward in time."""
    if isinstance(seq_idx, str):
        seq_idx, activation = None, seq_idx
    assert final_states_out is None or return_final_states, "final_states_out needs return_final_states"
    result = _causal_conv1d(x, weight, bias, seq_idx, initial_states, return_final_states, activation, reverse)
    if final_states_out is None:
        return result
    with torch.no_grad():
        final_states_out.copy_(result[1])
    return result[0], final_states_out


def _packed_ref(padded, weight, bias, initial_states, activation, seq_idx, return_final_states):
    """Packed sequences: a tap counts if it lies in the output's sequence; the initial states belong to the first one."""
    assert not return_final_states, "seq_idx does not support return_final_states"
    width = weight.shape[1]
    first = torch.full_like(seq_idx[:, :1], -1) if initial_states is None else seq_idx[:, :1]
    index = torch.cat([first.expand(-1, width - 1), seq_idx], dim=1).unfold(1, width, 1)
    taps = padded.unfold(2, width, 1) * (index == seq_idx[..., None]).unsqueeze(1)
    out = (taps * weight[:, None]).sum(-1) + (0 if bias is None else bias[:, None])
    out = out.masked_fill((seq_idx < 0).unsqueeze(1), 0.0)
    return out if activation is None else F.silu(out)


def causal_conv1d_ref(x, weight, bias=None, initial_states=None, return_final_states=False, final_states_out=None,
                      activation=None, seq_idx=None):
    """causal_conv1d_fn in plain torch, for reference."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    dtype, (dim, width), length = x.dtype, weight.shape, x.shape[-1]
    before = x.new_zeros(x.shape[0], dim, width - 1) if initial_states is None else initial_states
    padded = torch.cat([before, x], dim=-1)
    if seq_idx is not None:
        return _packed_ref(padded, weight, bias, initial_states, activation, seq_idx, return_final_states).to(dtype=dtype)
    out = F.conv1d(padded.to(weight.dtype), weight.unsqueeze(1), bias, groups=dim)[..., :length]
    out = (out if activation is None else F.silu(out)).to(dtype=dtype)
    if not return_final_states:
        return out
    final = padded[..., padded.shape[-1] - (width - 1):].to(dtype)
    return out, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """New tokens x (B, D) or (B, D, L) with conv_state (B, D, S >= W-1), updated in place -> out like x."""
    return _causal_conv1d_update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)


def causal_conv1d_update_ref(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None):
    """The update in plain torch."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    rows = x.unsqueeze(-1) if x.dim() == 2 else x
    (dim, width), length, room = weight.shape, rows.shape[-1], conv_state.shape[-1]
    if cache_seqlens is None:
        known = torch.cat([conv_state, rows], dim=-1).to(weight.dtype)
        conv_state.copy_(known[..., known.shape[-1] - room:])
    else:
        start = cache_seqlens.long().unsqueeze(1)
        old = (start + torch.arange(1 - width, 0, device=x.device)).remainder(room).unsqueeze(1).expand(-1, dim, -1)
        known = torch.cat([conv_state.gather(2, old), rows], dim=-1).to(weight.dtype)
        new = (start + torch.arange(length, device=x.device)).remainder(room).unsqueeze(1).expand(-1, dim, -1)
        conv_state.scatter_(2, new, rows)
    out = F.conv1d(known, weight.unsqueeze(1), bias, groups=dim)[..., -length:]
    out = (out if activation is None else F.silu(out)).to(dtype=x.dtype)
    return out.squeeze(-1) if x.dim() == 2 else out


CausalConv1dFn = function_by_name("CausalConv1dFn", causal_conv1d_fn)
