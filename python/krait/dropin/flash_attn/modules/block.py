"""Transformer blocks: dropout + add + norm before the mixer and the MLP (prenorm; the sum is carried as residual), or after them; and
the parallel form, where both read the same sum."""

from functools import partial

import torch
from torch import nn

from flash_attn.modules.mha import MHA
from flash_attn.modules.mlp import Mlp
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn


class StochasticDepth(nn.Module):
    """In training, drops whole samples (axis 0) with probability p and scales the others."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        kept = torch.empty(x.shape[0], *[1] * (x.dim() - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * kept / (1 - self.p) if self.p < 1 else x * kept


def _mark(norms, sequence_parallel, mark_shared_params):
    for parameter in [p for norm in norms for p in norm.parameters()]:
        if sequence_parallel:
            parameter._sequence_parallel = True
        if mark_shared_params:
            parameter._shared_params = True


def _fused_options(norm, dropout, training):
    return dict(eps=norm.eps, dropout_p=dropout.p if training else 0.0, is_rms_norm=isinstance(norm, RMSNorm))


class Block(nn.Module):
    def __init__(self, dim, mixer_cls=None, mlp_cls=None, norm_cls=nn.LayerNorm, dropout_cls=nn.Dropout, prenorm=True, resid_dropout1=0.0, resid_dropout2=0.0,
                 drop_path1=0.0, drop_path2=0.0, fused_dropout_add_ln=False, return_residual=False, residual_in_fp32=False, sequence_parallel=False,
                 mark_shared_params=False):
        super().__init__()
        assert prenorm or not residual_in_fp32, "residual_in_fp32 is only compatible with prenorm=True"
        self.prenorm, self.fused_dropout_add_ln, self.return_residual, self.residual_in_fp32 = prenorm, fused_dropout_add_ln, return_residual, residual_in_fp32
        self.mixer = (partial(MHA, num_heads=dim // 64) if mixer_cls is None else mixer_cls)(dim)
        self.dropout1, self.drop_path1, self.norm1 = dropout_cls(resid_dropout1), StochasticDepth(drop_path1), norm_cls(dim)
        self.mlp = (partial(Mlp, hidden_features=4 * dim) if mlp_cls is None else mlp_cls)(dim)
        if not isinstance(self.mlp, nn.Identity):
            self.dropout2, self.drop_path2, self.norm2 = dropout_cls(resid_dropout2), StochasticDepth(drop_path2), norm_cls(dim)
        _mark([self.norm1] + ([self.norm2] if hasattr(self, "norm2") else []), sequence_parallel, mark_shared_params)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def _add_norm(self, x, residual, dropout, drop_path, norm):
        """-> norm(sum), sum, of the dropped x and the residual (None: x alone)."""
        if self.fused_dropout_add_ln:
            rowscale = drop_path(torch.ones(x.shape[:-1], device=x.device, dtype=x.dtype)) if drop_path.p > 0.0 and self.training else None
            return layer_norm_fn(x, norm.weight, norm.bias, residual=residual, rowscale=rowscale, prenorm=True, residual_in_fp32=self.residual_in_fp32,
                                 **_fused_options(norm, dropout, self.training))
        dropped = drop_path(dropout(x))
        total = dropped if residual is None else dropped + residual
        normed = norm(total.to(norm.weight.dtype))
        return normed, total.float() if self.residual_in_fp32 else total

    def _forward_postnorm(self, x, mixer_kwargs):
        steps = [(lambda t: self.mixer(t, **mixer_kwargs), self.dropout1, self.drop_path1, self.norm1)]
        if not isinstance(self.mlp, nn.Identity):
            steps.append((self.mlp, self.dropout2, self.drop_path2, self.norm2))
        for layer, dropout, drop_path, norm in steps:
            out = layer(x)
            out, x = out if self.return_residual else (out, x)
            x = self._add_norm(out, x, dropout, drop_path, norm)[0]
        return x

    def forward(self, hidden_states, residual=None, mixer_subset=None, mixer_kwargs=None):
        """-> hidden states, residual; without prenorm the hidden states alone. mixer_subset: the queries of a mixer that reads all positions."""
        options = dict(mixer_kwargs or {})
        if not self.prenorm:
            assert residual is None, "a block with prenorm=False takes no residual"
            return self._forward_postnorm(hidden_states, options)
        hidden_states, residual = self._add_norm(hidden_states, residual, self.dropout1, self.drop_path1, self.norm1)
        if mixer_subset is not None:
            options["mixer_subset"], residual = mixer_subset, residual[:, mixer_subset]
        hidden_states = self.mixer(hidden_states, **options)
        if not isinstance(self.mlp, nn.Identity):
            hidden_states, residual = self._add_norm(hidden_states, residual, self.dropout2, self.drop_path2, self.norm2)
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual


class ParallelBlock(nn.Module):
    """Mixer and MLP side by side, as in GPT-J, GPT-NeoX and PaLM; tied_norm: one norm for both."""

    def __init__(self, dim, mixer_cls=None, mlp_cls=None, norm_cls=nn.LayerNorm, dropout_cls=nn.Dropout, resid_dropout1=0.0, resid_dropout2=0.0, tied_norm=False,
                 fused_dropout_add_ln=False, residual_in_fp32=False, sequence_parallel=False, mark_shared_params=False):
        super().__init__()
        self.tied_norm, self.fused_dropout_add_ln, self.residual_in_fp32 = tied_norm, fused_dropout_add_ln, residual_in_fp32
        self.mixer = (partial(MHA, num_heads=dim // 64) if mixer_cls is None else mixer_cls)(dim)
        self.dropout1, self.norm1 = dropout_cls(resid_dropout1), norm_cls(dim)
        self.mlp = (partial(Mlp, hidden_features=4 * dim) if mlp_cls is None else mlp_cls)(dim)
        self.dropout2 = dropout_cls(resid_dropout2)
        if not tied_norm:
            self.norm2 = norm_cls(dim)
        _mark([self.norm1] + ([] if tied_norm else [self.norm2]), sequence_parallel, mark_shared_params)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def _norms(self, x, x1, residual):
        """-> the two normed sums, the sum."""
        second = None if self.tied_norm else self.norm2
        if self.fused_dropout_add_ln:
            found = layer_norm_fn(x, self.norm1.weight, self.norm1.bias, residual, x1, getattr(second, "weight", None), getattr(second, "bias", None), prenorm=True,
                                  residual_in_fp32=self.residual_in_fp32, **_fused_options(self.norm1, self.dropout1, self.training))
            return found if second is not None else (found[0], found[0], found[1])
        total = self.dropout1(x)
        for part in (None if x1 is None else self.dropout2(x1), residual):
            total = total if part is None else total + part
        first = self.norm1(total.to(self.norm1.weight.dtype))
        other = first if second is None else second(total.to(second.weight.dtype))
        return first, other, total.float() if self.residual_in_fp32 else total

    def forward(self, hidden_states1, hidden_states2=None, residual=None, mixer_kwargs=None):
        """The previous block's mixer and MLP outputs and residual -> this block's."""
        first, second, residual = self._norms(hidden_states1, hidden_states2, residual)
        return self.mixer(first, **(mixer_kwargs or {})), self.mlp(second), residual
