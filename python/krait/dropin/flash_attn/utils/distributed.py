"""Collective operations along the first axis, plain and with gradients, on NCCL or gloo."""

from krait._collectives import (AllGatherFunc, AllReduceFunc, ReduceScatterFunc, all_gather, all_gather_raw, all_reduce, all_reduce_raw,  # noqa: F401
                                allreduce_sequence_parallel_grad, get_dim_for_local_rank, reduce_scatter, reduce_scatter_raw, sync_shared_params)
