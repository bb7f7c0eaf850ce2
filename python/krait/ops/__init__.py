"""The operators on torch tensors: checks, autograd and autocast around the C calls. The drop-ins wrap these."""

from .._torch import in_plain_torch, member
from .attention import attention, attention_with_cache, rotary, scaled_dot_product_attention
from .causal_conv1d import causal_conv1d, causal_conv1d_update, causal_conv1d_varlen_states
from .cross_entropy import cross_entropy
from .gated_delta_rule import gated_delta_rule
from .mamba2_block import Options as Mamba2Options, Weights as Mamba2Weights, mamba2_block
from .mamba3 import mamba3, mamba3_step
from .mamba3_block import Options as Mamba3Options, Weights as Mamba3Weights, heavy_tail, mamba3_block, mamba3_token
from .mamba_block import mamba_block
from .mamba_inner import bimamba_inner, mamba_inner
from .norms import add_norm, gated_norm
from .product import apply as apply_linear, is_plain, linear, product
from .selective_scan import selective_scan
from .ssd import ssd
from .state_update import state_update

__all__ = ["attention", "attention_with_cache", "rotary", "scaled_dot_product_attention", "causal_conv1d", "causal_conv1d_update", "causal_conv1d_varlen_states", "cross_entropy", "selective_scan", "ssd", "state_update", "gated_delta_rule",
           "add_norm", "gated_norm", "mamba_block", "mamba2_block", "mamba3", "mamba3_step", "mamba3_block", "mamba3_token", "Mamba3Options", "Mamba3Weights", "heavy_tail", "Mamba2Options", "Mamba2Weights", "mamba_inner", "bimamba_inner", "product",
           "linear", "apply_linear", "is_plain", "member", "in_plain_torch"]
