"""Import path of upstream's state passing functions."""

from mamba_ssm._pending import pending_function

state_passing = pending_function("state_passing", "SSD")
state_passing_ref = pending_function("state_passing_ref", "SSD")
