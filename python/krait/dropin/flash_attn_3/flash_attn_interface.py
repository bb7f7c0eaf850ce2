"""flash_attn_interface where Transformer Engine and Megatron-LM import it from."""

from flash_attn_interface import (  # noqa: F401
    _flash_attn_backward,
    _flash_attn_forward,
    flash_attn_combine,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
)
