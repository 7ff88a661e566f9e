"""Makes more runs of a version: from which code, with which packages, in which order, and when to stop."""
