"""Drop-in for mamba_ssm on krait: same names, any CPU and any GPU."""

__version__ = "2.3.2.post1"

from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
from mamba_ssm.modules.mamba2 import Mamba2
from mamba_ssm.modules.mamba2_simple import Mamba2Simple
from mamba_ssm.modules.mamba3 import Mamba3
from mamba_ssm.modules.mamba_simple import Mamba
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__all__ = ["selective_scan_fn", "mamba_inner_fn", "Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel"]
