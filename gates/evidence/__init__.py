"""Which runs and which of their numbers can be compared."""
