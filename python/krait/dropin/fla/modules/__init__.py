from fla.modules.convolution import ShortConvolution
from fla.modules.fused_norm_gate import FusedRMSNormGated
from fla.modules.l2norm import L2Norm

__all__ = ["FusedRMSNormGated", "L2Norm", "ShortConvolution"]
