"""Drop-in for VMamba's selective_scan_cuda_oflex on krait: the output may be float32 with 16-bit inputs."""

from krait.ops.low_level import oflex_bwd as bwd, oflex_fwd as fwd  # noqa: F401
