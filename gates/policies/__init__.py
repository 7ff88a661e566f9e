"""Policies as mappings (from YAML): reading them, refusing them in one line, writing them back."""
