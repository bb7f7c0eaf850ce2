"""The gated delta rule under upstream's names."""

import torch

from fla.ops._delta import check_beta, options_of, run


def _gate(use_gate_in_kernel, A_log, dt_bias):
    if not use_gate_in_kernel:
        return {}
    if A_log is None:
        raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True`.")
    return {"A": -A_log.float().exp(), "dt_bias": dt_bias}


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                           allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None,
                           use_gate_in_kernel=False, A_log=None, dt_bias=None, **kwargs):
    """q and k (B, T, H, K), v (B, T, HV, V), g (B, T, HV) log decays, or with use_gate_in_kernel raw ones, beta (B, T, HV) -> out (B, T, HV, V), the final
    states (B, HV, K, V) or None. cu_seqlens: packed sequences of a batch of 1, with a state each."""
    options = {"state_v_first": state_v_first, **options_of("chunk_gated_delta_rule", dict(kwargs, cp_context=cp_context))}
    return run(q, k, v, g, beta, None, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens, normalize=use_qk_l2norm_in_kernel,
               **check_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval), **_gate(use_gate_in_kernel, A_log, dt_bias), **options)


def fused_recurrent_gated_delta_rule(q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False,
                                     use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False,
                                     allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs):
    """chunk_gated_delta_rule with further log decays gk (B, T, HV, K) of keys; it has a gradient, too."""
    options = {"state_v_first": state_v_first, **options_of("fused_recurrent_gated_delta_rule", dict(kwargs, gv=gv is not None))}
    if use_gate_in_kernel and g is None:
        raise ValueError("`g` (raw pre-activation) must be provided when `use_gate_in_kernel=True`.")
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    return run(q, k, v, g, beta, gk, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens, normalize=use_qk_l2norm_in_kernel,
               **check_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval), **_gate(use_gate_in_kernel, A_log, dt_bias), **options)


chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
