"""Import path of upstream's SSD functions."""

from mamba_ssm._pending import pending_function

mamba_chunk_scan_combined = pending_function("mamba_chunk_scan_combined", "SSD")
mamba_split_conv1d_scan_combined = pending_function("mamba_split_conv1d_scan_combined", "SSD")
mamba_chunk_scan = pending_function("mamba_chunk_scan", "SSD")
mamba_conv1d_scan_ref = pending_function("mamba_conv1d_scan_ref", "SSD")
mamba_split_conv1d_scan_ref = pending_function("mamba_split_conv1d_scan_ref", "SSD")
ssd_selective_scan = pending_function("ssd_selective_scan", "SSD")
ssd_chunk_scan_combined_ref = pending_function("ssd_chunk_scan_combined_ref", "SSD")
