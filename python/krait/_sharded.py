"""Linear layers and embeddings sharded over the processes of a group."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ._collectives import all_gather, all_reduce, all_reduce_raw, get_dim_for_local_rank, reduce_scatter
from ._function import function_by_name
from .ops import linear


class _SumOfGradients(torch.autograd.Function):
    """The identity, with the gradient summed over the group: every process uses the input."""

    @staticmethod
    def forward(ctx, input_, process_group):
        ctx.process_group = process_group
        return input_.view_as(input_)

    @staticmethod
    def backward(ctx, grad_output):
        return all_reduce_raw(grad_output.clone(), ctx.process_group)[0], None


def parallel_linear_func(x, weight, bias=None, process_group=None, sequence_parallel=True):
    """Linear layer of an input that is sharded along the first axis (sequence_parallel) or replicated."""
    if process_group is not None:
        x = all_gather(x, process_group) if sequence_parallel else _SumOfGradients.apply(x, process_group)
    return linear(x, weight, bias)


ParallelLinearFunc = function_by_name("ParallelLinearFunc", parallel_linear_func)


def _share_of(features, process_group, multiple_of, name):
    if features % multiple_of:
        raise ValueError("%s (%d) must be a multiple of %d" % (name, features, multiple_of))
    return get_dim_for_local_rank(features, dist.get_world_size(process_group), dist.get_rank(process_group), multiple_of)


class ColumnParallelLinear(nn.Linear):
    """Each process has some rows of the weight and computes some output features."""

    def __init__(self, in_features, out_features, process_group, bias=True, sequence_parallel=True, multiple_of=1, device=None, dtype=None):
        super().__init__(in_features, _share_of(out_features, process_group, multiple_of, "out_features"), bias=bias, device=device, dtype=dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x):
        return parallel_linear_func(x, self.weight, self.bias, self.process_group, self.sequence_parallel)


class RowParallelLinear(nn.Linear):
    """Each process has some columns of the weight; outputs are summed (reduce-scattered with sequence_parallel). Rank 0
        has the bias."""

    def __init__(self, in_features, out_features, process_group, bias=True, sequence_parallel=True, multiple_of=1, device=None, dtype=None):
        super().__init__(_share_of(in_features, process_group, multiple_of, "in_features"), out_features,
                         bias=bias and dist.get_rank(process_group) == 0, device=device, dtype=dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x):
        return (reduce_scatter if self.sequence_parallel else all_reduce)(linear(x, self.weight, self.bias), self.process_group)


def _even_share(n, process_group, name):
    size = 1 if process_group is None else dist.get_world_size(process_group)
    if n % size:
        raise ValueError("%s (%d) must be divisible by world_size (%d)" % (name, n, size))
    return n // size


class VocabParallelEmbedding(nn.Embedding):
    """Each process has some rows; other tokens give 0."""

    def __init__(self, num_embeddings, *args, process_group=None, padding_idx=None, **kwargs):
        self.process_group = process_group
        rows = _even_share(num_embeddings, process_group, "num_embeddings")
        if rows != num_embeddings and padding_idx is not None:
            raise RuntimeError("ParallelEmbedding does not support padding_idx")
        super().__init__(rows, *args, padding_idx=padding_idx, **kwargs)

    def forward(self, input):
        if self.process_group is None:
            return super().forward(input)
        local = input - dist.get_rank(self.process_group) * self.num_embeddings
        foreign = (local < 0) | (local >= self.num_embeddings)
        return super().forward(local.masked_fill(foreign, 0)).masked_fill(foreign[..., None], 0.0)


class ColumnParallelEmbedding(nn.Embedding):
    """Each process has some features of every row."""

    def __init__(self, num_embeddings, embedding_dim, *args, process_group=None, **kwargs):
        self.process_group = process_group
        super().__init__(num_embeddings, _even_share(embedding_dim, process_group, "embedding_dim"), *args, **kwargs)


class ParallelEmbeddings(nn.Module):
    """Word and position embeddings; max_position_embeddings <= 0: no positions."""

    def __init__(self, embed_dim, vocab_size, max_position_embeddings, process_group, padding_idx=None, sequence_parallel=True, device=None, dtype=None):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.process_group, self.sequence_parallel, self.max_position_embeddings = process_group, sequence_parallel, max_position_embeddings
        self.word_embeddings = VocabParallelEmbedding(vocab_size, embed_dim, padding_idx=padding_idx, process_group=process_group, **factory)
        if max_position_embeddings > 0:
            self.position_embeddings = ColumnParallelEmbedding(max_position_embeddings, embed_dim, process_group=process_group, **factory)

    def forward(self, input_ids, position_ids=None, combine_batch_seqlen_dim=False):
        """input_ids (B, L) -> (B, L, embed_dim) or (B L, embed_dim), summed over the group."""
        size = dist.get_world_size(self.process_group)
        embeddings = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            ids = torch.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids
            share, rank = self.position_embeddings(ids), dist.get_rank(self.process_group)
            embeddings = embeddings + F.pad(share, (rank * share.shape[-1], (size - 1 - rank) * share.shape[-1]))
        embeddings = embeddings.flatten(0, 1) if combine_batch_seqlen_dim else embeddings
        return embeddings if size <= 1 else (reduce_scatter if self.sequence_parallel else all_reduce)(embeddings, self.process_group)
