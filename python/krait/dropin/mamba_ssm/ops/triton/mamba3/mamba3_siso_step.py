"""One token of Mamba 3's scan with one input and output per head, under upstream's path."""

import torch

from krait.ops import mamba3_step


def mamba3_siso_step(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Input_States=None):
    """Q, K (B, G, N), V, Z (B, H, P), ADT, DT, Trap (B, H), Angles (B, H, S), Input_States (angles, states, K, V), which stay as they are
    -> (out, [angles modulo 2 pi, states, K, V])."""
    if Input_States is None:
        raise ValueError("mamba3_siso_step: Input_States must be given (angles, states, K, V)")
    assert all(t.shape[0] == V.shape[0] for t in Input_States), "mamba3_siso_step: Input_States are not of V's %d sequences" % V.shape[0]
    angle, state, k, v = [t.to(torch.float32, copy=True).contiguous() for t in Input_States]
    out = mamba3_step(angle, state, k.unsqueeze(1), v, V, ADT, DT, Trap, K, Q, K_bias.unsqueeze(1), Q_bias.unsqueeze(1), Angles, D, Z)
    return out, [angle, state, k, V]
