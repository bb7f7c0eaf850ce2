"""Upstream's switch for deterministic summation order. krait's order is always fixed."""


def use_deterministic_mode():
    return True


def set_deterministic_mode(value):
    """Accepted but ignored."""
