"""Which store a run goes to, how it is reached, and the sessions and owners in it."""
