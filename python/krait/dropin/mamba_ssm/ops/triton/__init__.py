"""Import path of upstream."""
