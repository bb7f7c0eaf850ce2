"""Import path of upstream's Mamba2."""

from mamba_ssm._pending import pending_module

Mamba2 = pending_module("Mamba2", "SSD")
