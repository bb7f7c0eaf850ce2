"""The functions below autograd, by their names in newer releases."""

from krait.ops.low_level import conv_bwd as causal_conv1d_bwd_function
from krait.ops.low_level import conv_fwd as causal_conv1d_fwd_function
from krait.ops.low_level import conv_update as causal_conv1d_update_function

__all__ = ["causal_conv1d_fwd_function", "causal_conv1d_bwd_function", "causal_conv1d_update_function"]
