"""Import path of upstream's chunk state functions."""

from mamba_ssm._pending import pending_function

chunk_state = pending_function("chunk_state", "SSD")
chunk_state_ref = pending_function("chunk_state_ref", "SSD")
chunk_state_varlen = pending_function("chunk_state_varlen", "SSD")
