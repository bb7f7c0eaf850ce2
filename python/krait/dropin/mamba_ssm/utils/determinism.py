"""Upstream's switch between sums in any order and in a fixed one. krait's are always in a fixed one."""


def use_deterministic_mode():
    return True


def set_deterministic_mode(value):
    """Accepted, and without effect."""
