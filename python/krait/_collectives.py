"""Collective operations along the first axis, plain and with gradients, on NCCL or gloo."""

import torch
import torch.distributed as dist


def all_gather_raw(input_, process_group, async_op=False):
    """All processes' inputs concatenated -> (output, handle); no gradient."""
    output = input_.new_empty(dist.get_world_size(process_group) * input_.shape[0], *input_.shape[1:])
    return output, dist.all_gather_into_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)


def reduce_scatter_raw(input_, process_group, async_op=False):
    """This process's shard of the sum of all inputs -> (output, handle); no gradient."""
    size = dist.get_world_size(process_group)
    assert input_.shape[0] % size == 0, "%d rows cannot be split evenly over %d processes" % (input_.shape[0], size)
    output = input_.new_empty(input_.shape[0] // size, *input_.shape[1:])
    if dist.get_backend(process_group) == "gloo":  # not all releases support reduce-scatter
        total, _ = all_reduce_raw(input_.clone(), process_group)
        return output.copy_(total.chunk(size)[dist.get_rank(process_group)]), None
    return output, dist.reduce_scatter_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)


def all_reduce_raw(input_, process_group, async_op=False):
    """The sum of all inputs, in place if the input is contiguous -> (output, handle); no gradient."""
    output = input_.contiguous()
    return output, dist.all_reduce(output, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_, process_group):
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output):
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_, process_group):
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output):
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_, process_group):
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


all_gather, reduce_scatter, all_reduce = AllGatherFunc.apply, ReduceScatterFunc.apply, AllReduceFunc.apply


@torch.no_grad()
def sync_shared_params(model, process_group):
    """Broadcasts parameters marked _shared_params from the group's first process."""
    for _, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        if getattr(parameter, "_shared_params", False):
            dist.broadcast(parameter, src=dist.get_global_rank(process_group, 0), group=process_group)


@torch.no_grad()
def allreduce_sequence_parallel_grad(model, process_group):
    """Sums the gradients of parameters marked _sequence_parallel over the group."""
    for _, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        if getattr(parameter, "_sequence_parallel", False) and parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=process_group)


def get_dim_for_local_rank(dim, world_size, local_rank, multiple_of=1):
    """This process's share of dim, in units of multiple_of; the first ranks take the remainder."""
    share, rest = divmod(dim // multiple_of, world_size)
    return (share + int(local_rank < rest)) * multiple_of
