"""Drop-in for flash_attn_2_cuda on krait: upstream's extension module below autograd, tensors in, tensors out."""

from krait.ops.low_level import attention_bwd as bwd
from krait.ops.low_level import attention_fwd as fwd
from krait.ops.low_level import attention_fwd_kvcache as fwd_kvcache
from krait.ops.low_level import attention_varlen_bwd as varlen_bwd
from krait.ops.low_level import attention_varlen_fwd as varlen_fwd

__all__ = ["fwd", "varlen_fwd", "bwd", "varlen_bwd", "fwd_kvcache"]
