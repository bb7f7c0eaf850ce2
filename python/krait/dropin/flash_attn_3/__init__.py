"""Drop-in for flash_attn_3 on krait: the package beside flash_attn_interface, by which clients tell that FlashAttention-3 is there."""
