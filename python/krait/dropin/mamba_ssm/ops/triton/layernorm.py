"""The add + norm functions with their mamba_ssm 1.x names and argument order (VideoMamba uses these)."""

from krait._function import function_by_name
from mamba_ssm.ops.triton import layer_norm as _new
from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_linear_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn", "layer_norm_linear_fn", "layer_norm_ref", "rms_norm_ref"]


def layer_norm_fn(x, weight, bias, residual=None, eps=1e-6, prenorm=False, residual_in_fp32=False, is_rms_norm=False):
    return _new.layer_norm_fn(x, weight, bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
                              is_rms_norm=is_rms_norm)


def rms_norm_fn(x, weight, bias, residual=None, prenorm=False, residual_in_fp32=False, eps=1e-6):
    return _new.rms_norm_fn(x, weight, bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32)


def layer_norm_ref(x, weight, bias, residual=None, eps=1e-6, prenorm=False, upcast=False):
    return _new.layer_norm_ref(x, weight, bias, residual, eps=eps, prenorm=prenorm, upcast=upcast)


def rms_norm_ref(x, weight, bias, residual=None, eps=1e-6, prenorm=False, upcast=False):
    return _new.rms_norm_ref(x, weight, bias, residual, eps=eps, prenorm=prenorm, upcast=upcast)


LayerNormFn = function_by_name("LayerNormFn", layer_norm_fn)
