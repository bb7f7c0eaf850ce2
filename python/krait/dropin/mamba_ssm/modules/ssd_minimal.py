"""Import path of upstream's ssd_minimal_discrete."""

from mamba_ssm._pending import pending_function

ssd_minimal_discrete = pending_function("ssd_minimal_discrete", "SSD")
