"""Tries another set of packages against the present one: locked and built by uv, probed, and bisected if it blocks."""
