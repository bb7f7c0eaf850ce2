"""Drop-in for causal_conv1d_cuda on krait: its functions, in every argument order used by releases and forks."""

from krait.ops import low_level as _f
from krait.ops.causal_conv1d import run_backward, run_forward, run_update


def _wrong(name, args, known):
    return TypeError("causal_conv1d_cuda.%s: %d arguments; known forms take %s" % (name, len(args), known))


def causal_conv1d_fwd(*args):
    """(x, weight, bias, silu) 1.0; (.., seq_idx, silu) 1.1; (.., seq_idx, initial_states, final_states_out, silu) 1.2;
    (.., seq_idx, initial_states, out, final_states_out, silu) 1.5."""
    x, weight, bias, *rest = args
    if len(args) == 4:
        return _f.conv_fwd(x, weight, bias, None, None, None, rest[0])
    if len(args) == 5:
        return _f.conv_fwd(x, weight, bias, rest[0], None, None, rest[1])
    if len(args) == 7:
        return _f.conv_fwd(*args)
    if len(args) == 8:
        seq_idx, initial_states, out, final_states_out, silu = rest
        return run_forward(x, weight, bias, seq_idx, initial_states, silu, False, out, final_states_out)
    raise _wrong("causal_conv1d_fwd", args, "4, 5, 7 or 8")


def causal_conv1d_bwd(*args):
    """(x, weight, bias, dout, dx, silu) 1.0; (.., dout, seq_idx, dx, silu) 1.1; (.., dout, seq_idx, initial_states,
    dfinal_states, dx, return_dinitial_states, silu) 1.2; (.., dfinal_states, dx, dweight, dbias, dinitial_states, silu) 1.5."""
    x, weight, bias, dout, *rest = args
    if len(args) == 6:
        return _f.conv_bwd(x, weight, bias, dout, None, None, None, rest[0], False, rest[1])[:3]
    if len(args) == 7:
        return _f.conv_bwd(x, weight, bias, dout, rest[0], None, None, rest[1], False, rest[2])[:3]
    if len(args) == 10:
        return _f.conv_bwd(*args)
    if len(args) == 12:
        seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states, silu = rest
        return run_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal_states, silu, False, dx, dweight, dbias,
                            dinitial_states)
    raise _wrong("causal_conv1d_bwd", args, "6, 7, 10 or 12")


def causal_conv1d_update(*args):
    """(x, conv_state, weight, bias, silu) 1.0; (.., silu, cache_seqlens) 1.4; (.., cache_seqlens, conv_state_indices) 1.5;
    (x, conv_state, weight, bias, out, silu, cache_seqlens, conv_state_indices) later."""
    if 5 <= len(args) <= 7:
        return _f.conv_update(*args, *[None] * (7 - len(args)))
    if len(args) == 8:
        x, conv_state, weight, bias, out, silu, cache_seqlens, indices = args
        return run_update(x, conv_state, weight, bias, silu, cache_seqlens, indices, out)
    raise _wrong("causal_conv1d_update", args, "5 to 8")
