"""Drop-in for causal_conv1d on krait: same names, any CPU and any GPU."""

__version__ = "1.7.0"

from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
