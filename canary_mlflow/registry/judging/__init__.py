"""A version is judged: its evidence against the champion's, what keeps it back, and what the verdict leaves."""
