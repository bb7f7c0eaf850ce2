"""What the functions of gated_delta_rule and kda share: options, packed sequences."""

import torch

from krait.ops import gated_delta_rule

_KNOWN = {"chunk_size", "cu_seqlens_cpu", "chunk_indices", "transpose_state_layout", "safe_gate", "disable_recompute"}  # of upstream's kernels, or renamed


def options_of(name, rest):
    """Keyword arguments that change the result raise; those of upstream's kernels are ignored -> those renamed."""
    if "head_first" in rest:
        raise DeprecationWarning("head_first has been removed. Inputs must be in `[B, T, H, ...]` format.")  # upstream's class
    given = sorted(option for option, value in rest.items() if option not in _KNOWN and value not in (None, False))
    if given:
        raise NotImplementedError("krait: %s has no %s" % (name, ", ".join(given)))
    return {"state_v_first": bool(rest["transpose_state_layout"])} if "transpose_state_layout" in rest else {}


def check_beta(sigmoid, allow_neg_eigval):
    if allow_neg_eigval and not sigmoid:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
    return {"sigmoid": bool(sigmoid), "beta_scale": 2.0 if allow_neg_eigval else 1.0}


def _sequences(q, initial_state, cu_seqlens):
    """[(first token, one behind the last)] of packed sequences."""
    if q.shape[0] != 1:
        raise ValueError("The batch size is expected to be 1 rather than %d when using `cu_seqlens`. Please flatten variable-length inputs before processing." % q.shape[0])
    ends = cu_seqlens.tolist()
    if initial_state is not None and initial_state.shape[0] != len(ends) - 1:
        raise ValueError("The number of initial states is expected to be equal to the number of input sequences, i.e., %d rather than %d."
                         % (len(ends) - 1, initial_state.shape[0]))
    return list(zip(ends, ends[1:]))


def run(q, k, v, g, beta, key_decay=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None, **options):
    """-> out, the final states or None."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError("%s has the shape %s, it must be (batch, tokens, heads, features)" % (name, tuple(x.shape)))
    if q.shape[2] != k.shape[2] or v.shape[2] % q.shape[2]:
        raise ValueError("q has %d heads, k %d, v %d: q and k must have the same number, and v a multiple of it" % (q.shape[2], k.shape[2], v.shape[2]))
    state = initial_state.mT if state_v_first and initial_state is not None else initial_state
    if cu_seqlens is None:
        out, final = gated_delta_rule(q, k, v, g, beta, key_decay=key_decay, initial_states=state, return_final_states=True, **options)
    else:
        parts = []
        for i, (begin, end) in enumerate(_sequences(q, state, cu_seqlens)):
            each = [t if t is None else t[:, begin:end] for t in (q, k, v, g, beta, key_decay)]
            parts.append(gated_delta_rule(*each[:5], key_decay=each[5], initial_states=None if state is None else state[i:i + 1], return_final_states=True, **options))
        out, final = torch.cat([part for part, _ in parts], 1), torch.cat([last for _, last in parts])
    by = 1.0 if scale is None else scale * k.shape[3] ** 0.5
    final = (final.mT if state_v_first else final) if output_final_state else None
    return out if abs(by - 1) < 1e-6 else out * by, final
