"""What everything speaks of: metrics, runs, sides, policies and verdicts, and how they are worded."""
