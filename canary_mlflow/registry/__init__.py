"""Guarding the champion: versions, verdicts and the alias."""
