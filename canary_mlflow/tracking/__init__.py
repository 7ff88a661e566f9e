"""Watching a run: what is measured, how it reaches MLflow, how it is read back."""
