"""FlashAttention-4's functions over krait's kernels."""

from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
