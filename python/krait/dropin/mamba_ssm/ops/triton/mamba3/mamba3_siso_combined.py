"""Mamba 3's scan with one input and output per head, under upstream's path; nothing here needs Triton."""

from krait.ops import mamba3


def mamba3_siso_combined(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Input_States=None, chunk_size=64, return_final_states=False,
                         cu_seqlens=None):
    """Q, K (B, L, G, N), V, Z (B, L, H, P), ADT, DT, Trap (B, H, L), biases (H, N), Angles (B, L, H, S), D (H) -> out like V; with return_final_states (out,
    angles, states, K, V after the last token). Everything is computed in the tensors' own types, in float32 inside; chunk_size is a hint without effect."""
    if cu_seqlens is not None and Q.shape[0] != 1:
        raise ValueError("mamba3_siso_combined: cu_seqlens needs a batch of 1 that holds all sequences, got a batch of %d" % Q.shape[0])
    if Input_States is not None:
        given = [t is not None for t in Input_States]
        assert len(given) == 4 and all(given) == any(given), "mamba3_siso_combined: Input_States must be four (angles, states, K, V), or None"
        angle, state, k, v = Input_States
        Input_States = (angle, state, k.unsqueeze(1), v) if all(given) else None
    results = mamba3(V, *[t.transpose(1, 2) for t in (ADT, DT, Trap)], K, Q, K_bias.unsqueeze(1), Q_bias.unsqueeze(1), Angles, D, Z, initial_states=Input_States,
                     cu_seqlens=cu_seqlens, return_final_states=return_final_states)
    if not return_final_states:
        return results
    out, angle, state, k, v = results
    return out, angle, state, k.squeeze(1), v
