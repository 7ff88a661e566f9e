"""More runs of a version: of which code, with which packages, in which order, and when to stop."""
