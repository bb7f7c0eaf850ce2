"""Import path of upstream's Mamba3."""

from mamba_ssm._pending import pending_module

Mamba3 = pending_module("Mamba3", "Mamba-3")
