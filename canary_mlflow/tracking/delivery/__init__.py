"""How a run's numbers reach the store: queued, retried, kept in a file, and none silently lost."""
