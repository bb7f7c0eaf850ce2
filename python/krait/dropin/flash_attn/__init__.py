"""Drop-in for flash_attn on krait: the attention functions raise NotImplementedError so far."""

__version__ = "2.8.3"

from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
