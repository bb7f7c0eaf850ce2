"""Drop-in for fla on krait: the gated delta rule of flash-linear-attention, any CPU and any GPU."""

__version__ = "0.6.0"
