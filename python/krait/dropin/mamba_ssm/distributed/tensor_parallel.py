"""Linear layers and embeddings sharded over the processes of a group."""

from krait._collectives import all_gather, all_gather_raw, all_reduce, reduce_scatter, reduce_scatter_raw  # noqa: F401
from krait._sharded import (ColumnParallelEmbedding, ColumnParallelLinear, ParallelEmbeddings, ParallelLinearFunc, RowParallelLinear,  # noqa: F401
                            VocabParallelEmbedding, parallel_linear_func)
