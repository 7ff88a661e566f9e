"""Results of benchmarks, as evaluation harnesses write them, and their comparison."""
