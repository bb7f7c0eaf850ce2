"""Import path of upstream's MHA."""

from mamba_ssm._pending import pending_module

MHA = pending_module("MHA", "attention")
