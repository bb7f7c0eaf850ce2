"""Dropout + add + layer norm, under upstream's fused extension's names."""

import torch

from krait._function import function_by_name
from krait.ops.norms import add_norm as _add_norm


def _dropped(x, p, scales):
    """x times the scales, then dropout -> float32, the mask (None without dropout)."""
    x = x.float()
    for scale in scales:
        x = x if scale is None else x * scale
    if p == 0.0:
        return x, None
    mask = torch.rand(x.shape, device=x.device) >= p
    return x * mask / (1.0 - p), mask


def _shown(mask, x):
    return torch.ones(x.shape, dtype=torch.uint8, device=x.device) if mask is None else mask.to(torch.uint8)


def _sum_dtype(x0, residual, residual_in_fp32):
    return residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype


def _normalised(total, x0, weights, epsilon, is_rms_norm):
    """One norm of the sum for each pair of weights, in the type of x0."""
    return [_add_norm(total, weight, bias, eps=epsilon, is_rms_norm=is_rms_norm).to(x0.dtype) for weight, bias in weights]


def dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, is_rms_norm):
    """norm(dropout(x0 rowscale layerscale) (+ residual))[, the sum with prenorm][, the mask]."""
    if dropout_p == 0.0 and layerscale is None:
        result = _add_norm(x0, weight, bias, residual, eps=epsilon, rowscale=rowscale, prenorm=prenorm, residual_in_fp32=residual_in_fp32, is_rms_norm=is_rms_norm)
        results, mask = list(result) if prenorm else [result], None
    else:
        x, mask = _dropped(x0, dropout_p, (None if rowscale is None else rowscale[..., None], layerscale))
        total = (x if residual is None else x + residual).to(_sum_dtype(x0, residual, residual_in_fp32))
        results = _normalised(total, x0, [(weight, bias)], epsilon, is_rms_norm) + ([total] if prenorm else [])
    results += [_shown(mask, x0)] if return_dropout_mask else []
    return results[0] if len(results) == 1 else tuple(results)


def _placed(rows, subset):
    """rows (n, D) at the positions where subset is positive: row subset - 1; zeros elsewhere."""
    padded = torch.cat([rows.new_zeros(1, rows.shape[-1]), rows.reshape(-1, rows.shape[-1])])
    return padded.index_select(0, subset.flatten().long()).unflatten(0, subset.shape)


def _picked(whole, subset, n_rows):
    """The rows where subset is positive, each at index subset - 1 -> (n_rows, D)."""
    index = subset.flatten().long()
    at = index.nonzero().flatten()
    return whole.new_zeros(n_rows, whole.shape[-1]).index_copy(0, index[at] - 1, whole.reshape(-1, whole.shape[-1]).index_select(0, at))


def dropout_add_norm_subset(x0, residual, weight, bias, dropout_p, epsilon, layerscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm, residual_in_fp32,
                            return_dropout_mask, is_rms_norm):
    x, mask = _dropped(x0, dropout_p, (rowscale_const, layerscale))
    x = x if x0_subset is None else _placed(x, x0_subset)
    total = (x if residual is None else x + residual.reshape(x.shape)).to(_sum_dtype(x0, residual, residual_in_fp32))
    total = total if residual is None else total.reshape(residual.shape)
    results = _normalised(total, x0, [(weight, bias)], epsilon, is_rms_norm)
    if out_subset is not None:
        results[0] = _picked(results[0], out_subset, out_numrows).reshape(-1, *x0.shape[1:])
    results += [total] if prenorm else []
    results += [_shown(mask, x0)] if return_dropout_mask else []
    return results[0] if len(results) == 1 else tuple(results)


def dropout_add_norm_parallel(x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, is_rms_norm):
    (x, mask0), (other, mask1) = _dropped(x0, dropout_p, ()), (None, None) if x1 is None else _dropped(x1, dropout_p, ())
    for part in (other, residual):
        x = x if part is None else x + part
    total = x.to(_sum_dtype(x0, residual, residual_in_fp32))
    results = _normalised(total, x0, [(w, b) for w, b in ((weight0, bias0), (weight1, bias1)) if w is not None], epsilon, is_rms_norm)
    results += [None] if weight1 is None else []
    results += [total] if prenorm else []
    results += [_shown(mask0, x0), None if x1 is None else _shown(mask1, x1)] if return_dropout_mask else []
    return tuple(results)


def layer_norm(x, weight, bias, epsilon):
    return _add_norm(x, weight, bias, eps=epsilon)


def dropout_add_layer_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False, residual_in_fp32=False,
                           return_dropout_mask=False):
    """norm(dropout(x0) (+ residual))[, the sum with prenorm][, the mask, uint8]."""
    return dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, False)


def dropout_add_layer_norm_subset(x0, residual, weight, bias, dropout_p, epsilon, layerscale=None, x0_subset=None, out_subset=None, rowscale_const=1.0,
                                  out_numrows=0, prenorm=False, residual_in_fp32=False, return_dropout_mask=False):
    """dropout_add_layer_norm where x0 and the output have only some rows: x0_subset and out_subset (B, S) int32 are 0 for a missing row,
    else its number among the rows of x0 or of the output (out_numrows of them, shaped as x0's), from 1. rowscale_const multiplies x0."""
    return dropout_add_norm_subset(x0, residual, weight, bias, dropout_p, epsilon, layerscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm,
                                   residual_in_fp32, return_dropout_mask, False)


def dropout_add_layer_norm_parallel_residual(x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm=False, residual_in_fp32=False,
                                             return_dropout_mask=False):
    """Two norms of dropout(x0) (+ dropout(x1)) (+ residual); the second is None without weight1[, the sum][, both masks]."""
    return dropout_add_norm_parallel(x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, False)


class DropoutAddLayerNorm(torch.nn.Module):
    def __init__(self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, dtype=None):
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x0, residual=None):
        return dropout_add_layer_norm(x0, residual, self.weight, self.bias, self.p if self.training else 0.0, self.eps, prenorm=self.prenorm,
                                      residual_in_fp32=self.residual_in_fp32)


# Upstream's autograd functions take the arguments in another order.
def _norm_by_position(x0, residual, gamma, beta, rowscale, colscale, dropout_p, epsilon, residual_in_fp32=False, prenorm=False, is_rms_norm=False,
                      return_dmask=False):
    return dropout_add_norm(x0, residual, gamma, beta, dropout_p, epsilon, rowscale, colscale, prenorm, residual_in_fp32, return_dmask, is_rms_norm)


def _subset_by_position(x0, residual, gamma, beta, colscale, x0_subset, out_subset, dropout_p, epsilon, rowscale_const, out_numrows, residual_in_fp32=False,
                        prenorm=False, is_rms_norm=False, return_dmask=False):
    return dropout_add_norm_subset(x0, residual, gamma, beta, dropout_p, epsilon, colscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm,
                                   residual_in_fp32, return_dmask, is_rms_norm)


def _parallel_by_position(x0, x1, residual, gamma0, beta0, gamma1, beta1, dropout_p, epsilon, residual_in_fp32=False, prenorm=False, is_rms_norm=False,
                          return_dmask=False):
    return dropout_add_norm_parallel(x0, x1, residual, gamma0, beta0, gamma1, beta1, dropout_p, epsilon, prenorm, residual_in_fp32, return_dmask, is_rms_norm)


DropoutAddLayerNormFn = function_by_name("DropoutAddLayerNormFn", _norm_by_position)
DropoutAddLayerNormSubsetFn = function_by_name("DropoutAddLayerNormSubsetFn", _subset_by_position)
DropoutAddLayerNormParallelResidualFn = function_by_name("DropoutAddLayerNormParallelResidualFn", _parallel_by_position)
