"""Drop-in for VMamba's selective_scan_cuda_oflex on krait alone: the output may be float32 where the input is not."""

from krait.ops.low_level import oflex_bwd as bwd, oflex_fwd as fwd  # noqa: F401
