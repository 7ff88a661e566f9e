"""A policy as a mapping (from YAML): read, refused in one line, written again."""
