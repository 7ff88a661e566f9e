"""Checks that need no baseline."""
