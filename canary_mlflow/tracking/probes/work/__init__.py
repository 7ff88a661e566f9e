"""Counts what a training step does, operation by operation on one fixture batch: without a clock, so without noise."""
