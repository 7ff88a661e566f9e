"""The gate's rule for benchmarks: both sides' answers to the same items, with the items' groups and the training's
seeds."""
