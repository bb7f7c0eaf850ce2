"""Kimi Delta Attention under upstream's names: the gated delta rule with a decay for each feature of a key."""

import torch
import torch.nn.functional as F

from fla.ops._delta import check_beta, options_of, run


def _log_decay(g, use_gate_in_kernel, A_log, dt_bias, lower_bound):
    """Upstream's gate: -exp(A_log) softplus(g + dt_bias), or with lower_bound lower_bound sigmoid(exp(A_log) (g + dt_bias))."""
    if not use_gate_in_kernel:
        return g
    if A_log is None and lower_bound is None:
        raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True` and `lower_bound` is not set.")
    g = g.float() if dt_bias is None else g.float() + dt_bias.float().view(g.shape[2], g.shape[3])
    by = 1.0 if A_log is None else A_log.float().exp().view(-1, 1)
    return -by * F.softplus(g) if lower_bound is None else lower_bound * torch.sigmoid(by * g)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
              use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None, disable_recompute=False,
              return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, A_log=None, dt_bias=None, **kwargs):
    """q and k (B, T, H, K), v (B, T, HV, V), g (B, T, HV, K) log decays, or with use_gate_in_kernel raw ones, beta (B, T, HV) -> out, the final states or
    None."""
    rest = dict(kwargs, cp_context=cp_context, return_intermediate_states=return_intermediate_states)
    options = {"state_v_first": state_v_first, **options_of("chunk_kda", rest)}
    return run(q, k, v, None, beta, _log_decay(g, use_gate_in_kernel, A_log, dt_bias, lower_bound), scale, initial_state, output_final_state, cu_seqlens=cu_seqlens,
               normalize=use_qk_l2norm_in_kernel, **check_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval), **options)


def fused_recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
                        use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, lower_bound=None, state_v_first=False, cu_seqlens=None,
                        **kwargs):
    """chunk_kda with upstream's other order of arguments; it has a gradient, too."""
    return chunk_kda(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
                     allow_neg_eigval, lower_bound=lower_bound, state_v_first=state_v_first, cu_seqlens=cu_seqlens, A_log=A_log, dt_bias=dt_bias, **kwargs)
