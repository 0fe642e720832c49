"""Variants of one plan side by side."""
