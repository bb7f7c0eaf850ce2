"""Import path of upstream's Mamba2Simple."""

from mamba_ssm._pending import pending_module

Mamba2Simple = pending_module("Mamba2Simple", "SSD")
