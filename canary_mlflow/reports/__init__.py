"""Verdicts as people and machines read them. analysis/formats.py lists the files that `canary report` makes."""
