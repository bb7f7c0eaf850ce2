"""Mamba-2's scan with upstream's signatures, its fused block function, and references in plain torch."""

import math

import torch
import torch.nn.functional as F

from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_ref  # noqa: F401
from causal_conv1d.cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function  # noqa: F401
from krait._function import function_by_name, gradients
from krait.ops import Mamba2Options, Mamba2Weights, mamba2_block, ssd as _ssd
from krait.ops.ssd import time_steps
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from mamba_ssm.ops.triton.k_activations import _swiglu_bwd, _swiglu_fwd  # noqa: F401
from mamba_ssm.ops.triton.layernorm_gated import _layer_norm_bwd, _layer_norm_fwd, rms_norm_ref, rmsnorm_fn  # noqa: F401
from mamba_ssm.ops.triton.ssd_bmm import _bmm_chunk_bwd, _bmm_chunk_fwd  # noqa: F401
from mamba_ssm.ops.triton.ssd_chunk_scan import _chunk_scan_bwd_dC, _chunk_scan_bwd_dcb, _chunk_scan_bwd_ddAcs_prev, _chunk_scan_bwd_ddAcs_stable  # noqa: F401
from mamba_ssm.ops.triton.ssd_chunk_scan import _chunk_scan_bwd_dstates, _chunk_scan_fwd, _inside, chunk_scan, chunk_scan_ref  # noqa: F401
from mamba_ssm.ops.triton.ssd_chunk_state import _chunk_cumsum_bwd, _chunk_state_bwd_db, _chunk_state_bwd_ddAcs_stable  # noqa: F401
from mamba_ssm.ops.triton.ssd_chunk_state import _chunk_cumsum_fwd, _chunk_state_fwd, chunk_state, chunk_state_ref, chunk_state_varlen, split_chunks
from mamba_ssm.ops.triton.ssd_state_passing import _state_passing_bwd, _state_passing_fwd, state_passing, state_passing_ref  # noqa: F401

_NO_LIMIT = (0.0, math.inf)


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None,
                              dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False, return_varlen_states=False, state_dtype=None):
    """x (B, L, H, P), dt (B, L, H), A (H), B and C (B, L, G, N) -> out like x[, final states (B, H, P, N)][, varlen states (S, H, P, N)].

    D (H) or (H, P), z like x, dt_bias (H), initial_states (B, H, P, N). seq_idx (B, L) int32 separates packed sequences,
    cu_seqlens (S + 1) gives their ends. States are always float32, whatever state_dtype; results do not depend on
    chunk_size."""
    out, final, varlen = _ssd(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus, dt_limit, return_final_states,
                              return_varlen_states, chunk_size)
    results = [out] + ([final] if return_final_states else []) + ([varlen] if return_varlen_states else [])
    return out if len(results) == 1 else tuple(results)


def _mamba_chunk_scan_combined_fwd(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None,
                                   dt_softplus=False, dt_limit=(0.0, float("inf")), state_dtype=None):
    """-> out, out before the gate (None without z), d and the cumulative sums of A d (B, H, c, q), the state before each chunk (B, c, H, P, N),
    final states[, varlen states]."""
    with torch.no_grad():
        out, final, varlen = _ssd(x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus, dt_limit, True, cu_seqlens is not None, chunk_size)
        before_gate = None if z is None else _ssd(x, dt, A, B, C, D, None, dt_bias, initial_states, seq_idx, None, dt_softplus, dt_limit)[0]
        sums, d = _chunk_cumsum_fwd(dt, A, chunk_size, dt_bias, dt_softplus, dt_limit)
        states = _chunk_state_fwd(B, x, d, sums, seq_idx)
        before, _ = _state_passing_fwd(states.flatten(3), sums[..., -1], None if initial_states is None else initial_states.flatten(2), seq_idx, chunk_size)
    found = out, before_gate, d, sums, before.unflatten(3, states.shape[3:]), final
    return found if cu_seqlens is None else (*found, varlen)


def _mamba_chunk_scan_combined_bwd(dout, x, dt, A, B, C, out, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, dfinal_states=None, seq_idx=None,
                                   dt_softplus=False, dt_limit=(0.0, float("inf")), dx=None, ddt=None, dB=None, dC=None, dz=None, recompute_output=False,
                                   state_dtype=None):
    """-> gradients of x, dt, A, B, C, D, z, dt_bias, initial_states (None for those not given)[, the output]; dx, ddt, dB, dC, dz: where to write."""
    given = [x, dt, A, B, C, D, z, dt_bias, initial_states]
    present = [i for i, t in enumerate(given) if t is not None]
    shown = []

    def scan(*tensors):
        whole = dict(zip(present, tensors))
        result, final, _ = _ssd(*[whole.get(i) for i in range(9)], seq_idx, None, dt_softplus, dt_limit, dfinal_states is not None, False, chunk_size)
        shown.append(result.detach())
        return result, final

    found = dict(zip(present, gradients(scan, [given[i] for i in present], (dout, dfinal_states))))
    places = {0: dx, 1: ddt, 3: dB, 4: dC, 6: dz}
    grads = tuple(None if i not in found else found[i] if places.get(i) is None else places[i].copy_(found[i]) for i in range(9))
    return (*grads, shown[0]) if recompute_output else grads


def _chunk_scan_chunk_state_bwd_dx(x, dt, dA_cumsum, B, CB, dout, dstates, D=None, seq_idx=None, dx=None):
    """-> gradients of x and dt within the chunks and through their states, and of D (None without it)."""
    def both(x, dt):
        return _inside(CB, x, dt, dA_cumsum), _chunk_state_fwd(B, x, dt, dA_cumsum, seq_idx)

    found, ddt = gradients(both, (x.float(), dt), (split_chunks(dout.float(), *dt.shape[2:]), dstates))
    dD = None
    if D is not None:
        found = found + dout.float() * (D if D.dim() == 2 else D[:, None])
        dD = (dout.float() * x.float()).sum((0, 1) if D.dim() == 2 else (0, 1, 3)).to(D.dtype)
    return found.to(x.dtype) if dx is None else dx.copy_(found), ddt, dD


def _sizes(zxbcdt, conv1d_weight, D, headdim, ngroups):
    """-> (channels of the MLP part, channels of the scan, heads, states)."""
    if D.dim() == 1:
        assert headdim is not None, "headdim is required if D is (nheads)"
    heads, headdim = D.shape if D.dim() == 2 else (D.shape[0], headdim)
    dim = heads * headdim
    states = (conv1d_weight.shape[0] - dim) // ngroups // 2
    wide = zxbcdt.shape[-1] - 2 * dim - 2 * ngroups * states - heads
    assert heads % ngroups == 0, "nheads %d is not a multiple of ngroups %d" % (heads, ngroups)
    assert states > 0 and conv1d_weight.shape[0] == dim + 2 * ngroups * states and wide >= 0 and wide % 2 == 0, \
        "zxbcdt %s and conv1d_weight %s do not fit %d channels in %d groups" % (tuple(zxbcdt.shape), tuple(conv1d_weight.shape), dim, ngroups)
    return wide // 2, dim, heads, states


def _heads_of(xBC, dim, heads, ngroups, states):
    """-> x (B, L, H, P), B and C (B, L, G, N)."""
    x, B, C = xBC.split([dim, ngroups * states, ngroups * states], dim=-1)
    return x.unflatten(-1, (heads, -1)), B.unflatten(-1, (ngroups, -1)), C.unflatten(-1, (ngroups, -1))


def _limits(dt_limit):
    assert len(dt_limit) == 2 and dt_limit[0] <= dt_limit[1], "dt_limit must be (low, high) with low <= high, got %s" % (tuple(dt_limit),)
    return float(dt_limit[0]), float(dt_limit[1])


def mamba_split_conv1d_scan_combined(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None, seq_idx=None,
                                     dt_limit=(0.0, float("inf")), return_final_states=False, activation="silu", rmsnorm_weight=None, rmsnorm_eps=1e-6,
                                     outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True, state_dtype=None):
    """zxbcdt (B, L, 2 d_mlp + 2 dim + 2 G N + H), in the order z0, x0, z, x, B, C, dt -> (B, L, d_mlp + dim), or (B, L, M) with outproj_weight
    (M, d_mlp + dim)[, final states]: convolution, scan, gate or gated norm, the MLP part silu(z0) x0 before it, output projection."""
    assert activation in (None, "silu", "swish"), "activation must be None, silu, or swish, not %r" % (activation,)
    assert outproj_weight is not None or outproj_bias is None, "outproj_bias needs outproj_weight"
    d_mlp, dim, heads, _ = _sizes(zxbcdt, conv1d_weight, D, headdim, ngroups)
    assert rmsnorm_weight is None or rmsnorm_weight.shape == (dim,), "rmsnorm_weight %s is not (%d)" % (tuple(rmsnorm_weight.shape), dim)
    options = Mamba2Options(dim // heads, ngroups, d_mlp, activation is not None, bool(norm_before_gate), 0.0 if rmsnorm_eps is None else float(rmsnorm_eps), *_limits(dt_limit), False,
                            bool(return_final_states))
    out, final = mamba2_block(zxbcdt, Mamba2Weights(None, None, conv1d_weight, conv1d_bias, dt_bias, A, D, rmsnorm_weight, outproj_weight, outproj_bias,
                                                    initial_states, seq_idx), options)
    return (out, final) if return_final_states else out


def mamba_chunk_scan(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    """The scan chunk by chunk in plain torch: -> out like x."""
    cumulated, d = _chunk_cumsum_fwd(dt, A, chunk_size, dt_bias, dt_softplus, (-math.inf, math.inf))
    states = chunk_state_ref(B, x, d, cumulated)
    before, _ = state_passing_ref(states.flatten(3), cumulated[..., -1])
    return chunk_scan_ref(B, C, x, d, cumulated, before.unflatten(3, states.shape[3:]), D, z)


ssd_chunk_scan_combined_ref = mamba_chunk_scan


def ssd_selective_scan(x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, dt_limit=(0.0, float("inf"))):
    """The scan through selective_scan_fn: dt may be (B, L, H, P), A (H P, N), dt_bias (H, P). As upstream, dt is clamped
        only if dt_limit is given."""
    heads, p = x.shape[2:]
    wide = [dt.unsqueeze(-1) if dt.dim() == 3 else dt, None if dt_bias is None else dt_bias.unsqueeze(-1) if dt_bias.dim() == 1 else dt_bias]
    dt, bias = [None if t is None else t.expand(*t.shape[:-1], p).flatten(-2) for t in wide]
    if tuple(dt_limit) != _NO_LIMIT:
        dt, bias, dt_softplus = time_steps(dt, bias, dt_softplus, dt_limit), None, False
    A = A.repeat_interleave(p)[:, None].expand(-1, B.shape[3]) if A.dim() == 1 else A
    D = D if D is None else D.repeat_interleave(p) if D.dim() == 1 else D.flatten()
    z = z if z is None else z.flatten(2).transpose(1, 2)
    out = selective_scan_fn(x.flatten(2).transpose(1, 2), dt.transpose(1, 2), A.float(), B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1), D, z, bias,
                            dt_softplus)
    return out.transpose(1, 2).unflatten(2, (heads, p))


def mamba_conv1d_scan_ref(xBC, conv1d_weight, conv1d_bias, dt, A, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False,
                          dt_limit=(0.0, float("inf")), activation="silu", headdim=None, ngroups=1):
    """Convolution, then scan: xBC (B, L, dim + 2 G N), z (B, L, dim) -> (B, L, dim)."""
    heads = dt.shape[2]
    headdim = z.shape[-1] // heads if z is not None else D.shape[1] if D is not None and D.dim() == 2 else headdim
    assert headdim is not None, "headdim is required without z or D of (nheads, headdim)"
    dim = heads * headdim
    xBC = causal_conv1d_ref(xBC.transpose(1, 2), conv1d_weight, conv1d_bias, activation=activation).transpose(1, 2)
    x, B, C = _heads_of(xBC, dim, heads, ngroups, (xBC.shape[-1] - dim) // ngroups // 2)
    gate = z if z is None else z.unflatten(-1, (heads, -1))
    return ssd_selective_scan(x, dt.to(x.dtype), A, B, C, D, gate, dt_bias, dt_softplus, dt_limit).flatten(2)


def mamba_split_conv1d_scan_ref(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, dt_limit=(0.0, float("inf")), activation="silu",
                                rmsnorm_weight=None, rmsnorm_eps=1e-6, outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1,
                                norm_before_gate=True):
    """mamba_split_conv1d_scan_combined in separate steps. Unlike upstream's, supports grouped norms and the MLP part."""
    d_mlp, dim, heads, states = _sizes(zxbcdt, conv1d_weight, D, headdim, ngroups)
    z0, x0, z, xBC, dt = zxbcdt.split([d_mlp, d_mlp, dim, dim + 2 * ngroups * states, heads], dim=-1)
    y = mamba_conv1d_scan_ref(xBC, conv1d_weight, conv1d_bias, dt, A, chunk_size, D, z if rmsnorm_weight is None else None, dt_bias, True, dt_limit,
                              activation, dim // heads, ngroups)
    if rmsnorm_weight is not None:
        y = rms_norm_ref(y, rmsnorm_weight, None, z, rmsnorm_eps, dim // ngroups, norm_before_gate)
    y = torch.cat([F.silu(z0) * x0, y], dim=-1) if d_mlp else y
    return y if outproj_weight is None else F.linear(y, outproj_weight, outproj_bias)


MambaChunkScanCombinedFn = function_by_name("MambaChunkScanCombinedFn", mamba_chunk_scan_combined)
MambaSplitConv1dScanCombinedFn = function_by_name("MambaSplitConv1dScanCombinedFn", mamba_split_conv1d_scan_combined)
