"""The short causal convolution of linear attention, time before channels, as a function, one token at a time, and as a module."""

import torch

from krait.ops import causal_conv1d as _convolution
from krait.ops import causal_conv1d_update as _update


def _over_packed(x, weight, bias, earlier, activation, cu_seqlens):
    """x (1, T, D) of N sequences with W earlier inputs each, (N, W, D) -> result, the last W inputs of each. Nothing waits for a GPU."""
    n, width, ends = earlier.shape[0], earlier.shape[1], cu_seqlens.long()
    at = torch.arange(x.shape[1], device=x.device)
    sequence = torch.bucketize(at, ends[1:].contiguous(), right=True).clamp(max=n - 1)
    begins = ends[:-1] + width * torch.arange(n, device=x.device)  # of each sequence, where its earlier inputs lie before it
    of_earlier = begins[:, None] + torch.arange(width, device=x.device)
    of_tokens = at + width * (sequence + 1)
    order = torch.empty(n * width + x.shape[1], dtype=torch.int64, device=x.device)
    order[torch.cat([of_earlier.flatten(), of_tokens])] = torch.arange(order.shape[0], device=x.device)
    longer = torch.cat([earlier.flatten(0, 1), x[0]])[order]
    owner = torch.cat([torch.arange(n, device=x.device).repeat_interleave(width), sequence])[order].to(torch.int32)
    out = _convolution(longer.t()[None], weight, bias, owner[None], activation=activation)[0].t()[of_tokens][None]
    return out, longer[of_earlier + (ends[1:] - ends[:-1])[:, None]]


def _over_batch(x, weight, bias, earlier, activation):
    """x (B, T, D), earlier (B, W, D) or None -> result, the last W inputs."""
    width = weight.shape[1]
    out = _convolution(x.transpose(1, 2), weight, bias, initial_states=None if earlier is None else earlier[:, 1:].transpose(1, 2), activation=activation)
    last = x[:, -width:]
    if last.shape[1] < width:
        before = x.new_zeros(x.shape[0], width, x.shape[2]) if earlier is None else earlier
        last = torch.cat([before, last], 1)[:, -width:]
    return out.transpose(1, 2), last


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False, activation=None, backend="triton",
                  cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **kwargs):
    """x (B, T, D), weight (D, W) -> result like x, final state or None. initial_state and the final one (N, D, W): the last W inputs of each
    sequence; with cu_seqlens (N + 1) x is (1, T, D). residual is added to the result. backend has no effect."""
    if weight is None or cp_context is not None:
        raise NotImplementedError("krait: fla's causal_conv1d needs a weight, and has no cp_context")
    shape = x.shape
    x = x.flatten(2) if x.dim() > 3 else x
    earlier = None if initial_state is None else initial_state.to(x.dtype).transpose(1, 2)
    if cu_seqlens is None:
        out, last = _over_batch(x, weight, bias, earlier, activation)
    else:
        n = cu_seqlens.shape[0] - 1
        earlier = x.new_zeros(n, weight.shape[1], x.shape[2]) if earlier is None else earlier
        out, last = _over_packed(x, weight, bias, earlier, activation, cu_seqlens)
    out = out.reshape(shape)
    return out if residual is None else out + residual, last.transpose(1, 2).contiguous() if output_final_state else None


def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
    """One token of each sequence, x (N, D), (1, N, D) or (N, 1, D); cache (N, D, W), updated in place -> result like x, cache."""
    out = _update(x.reshape(-1, cache.shape[1]), cache, weight, bias, activation).reshape(x.shape)
    return out if residual is None else out + residual, cache


class ShortConvolution(torch.nn.Conv1d):
    """A convolution for each channel. activation is None, "silu" or "swish"; backend has no effect."""

    def __init__(self, hidden_size, kernel_size, bias=False, activation="silu", backend="triton", device=None, dtype=None, **kwargs):
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, padding=kernel_size - 1, device=device, dtype=dtype)
        assert activation in (None, "silu", "swish"), "Activation `%s` not supported yet." % activation
        self.hidden_size, self.activation, self.backend = hidden_size, activation, backend

    def forward(self, x, residual=None, mask=None, cache=None, output_final_state=False, cu_seqlens=None, chunk_indices=None, **kwargs):
        """x (B, T, D), mask (B, T): 0 where x counts as 0; cache (N, D, W) -> result, final state. One token of each sequence updates the cache in place."""
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("`mask` and `cu_seqlens` cannot be provided at the same time")
            x = x * mask.unsqueeze(-1)
        n = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if x.shape[0] * x.shape[1] == n:
            return self.step(x, residual, cache, output_final_state, cu_seqlens)
        return causal_conv1d(x, self.weight.squeeze(1), self.bias, residual, cache, output_final_state, self.activation, cu_seqlens=cu_seqlens)

    def step(self, x, residual, cache, output_final_state=False, cu_seqlens=None):
        with_gradient = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if cache is None and with_gradient:
            out, last = causal_conv1d(x.reshape(-1, 1, self.hidden_size), self.weight.squeeze(1), self.bias, None, None, True, self.activation)
            out = out.reshape(x.shape)
            return out if residual is None else out + residual, last if output_final_state else None
        cache = x.new_zeros(x.shape[0] * x.shape[1], self.hidden_size, self.kernel_size[0]) if cache is None else cache
        out, cache = causal_conv1d_update(x, cache, residual, self.weight.squeeze(1), self.bias, self.activation)
        return out, cache if output_final_state else None

    @property
    def state_size(self):
        return self.hidden_size * self.kernel_size[0]
