"""What has no noise: exact facts, the work of a step, and what both sides recorded about how they were made."""
