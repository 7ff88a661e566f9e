"""The statistics: spreads between runs, tests over them, and what a number of runs can show."""
