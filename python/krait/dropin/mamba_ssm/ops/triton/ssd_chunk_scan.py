"""Import path of upstream's chunk scan functions."""

from mamba_ssm._pending import pending_function

chunk_scan = pending_function("chunk_scan", "SSD")
chunk_scan_ref = pending_function("chunk_scan_ref", "SSD")
