"""The statistics: spreads between runs, tests based on them, and what a given number of runs can show."""
