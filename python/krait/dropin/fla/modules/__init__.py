from fla.modules.fused_norm_gate import FusedRMSNormGated

__all__ = ["FusedRMSNormGated"]
