"""Add -> norm -> mixer (-> add -> norm -> MLP); residuals stay unnormalised."""

import torch
from torch import nn

from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn


class Block(nn.Module):
    def __init__(self, dim, mixer_cls, mlp_cls, norm_cls=nn.LayerNorm, fused_add_norm=False, residual_in_fp32=False):
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.norm = norm_cls(dim)
        self.mixer = mixer_cls(dim)
        if mlp_cls is not nn.Identity:
            self.norm2 = norm_cls(dim)
            self.mlp = mlp_cls(dim)
        else:
            self.mlp = None
        if fused_add_norm:
            assert isinstance(self.norm, (nn.LayerNorm, RMSNorm)), "Only LayerNorm and RMSNorm are supported for fused_add_norm"

    def _add_norm(self, norm, hidden_states, residual):
        if self.fused_add_norm:
            return layer_norm_fn(hidden_states, norm.weight, norm.bias, residual=residual, prenorm=True,
                                 residual_in_fp32=self.residual_in_fp32, eps=norm.eps, is_rms_norm=isinstance(norm, RMSNorm))
        residual = hidden_states + residual if residual is not None else hidden_states
        normed = norm(residual.to(dtype=norm.weight.dtype))
        return normed, residual.to(torch.float32) if self.residual_in_fp32 else residual

    def forward(self, hidden_states, residual=None, inference_params=None, **mixer_kwargs):
        """-> (hidden_states, residual); their sum is the block's result."""
        hidden_states, residual = self._add_norm(self.norm, hidden_states, residual)
        hidden_states = self.mixer(hidden_states, inference_params=inference_params, **mixer_kwargs)
        if self.mlp is not None:
            hidden_states, residual = self._add_norm(self.norm2, hidden_states, residual)
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
