"""What has no noise: exact facts, the work of a step, and what both sides recorded of how they were made."""
