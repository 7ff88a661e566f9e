"""What a training step does, counted operation by operation on one fixture batch: no clock, so no noise."""
