"""Part of the drop-in for flash_attn on krait."""
