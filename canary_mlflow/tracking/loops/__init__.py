"""Trainings without a Transformers trainer: a loop of one's own, and the frameworks that stand on it."""
