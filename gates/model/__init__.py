"""The values that everything else is about: metrics, runs, sides, policies and verdicts, and how they are worded."""
