"""Runs as the store shows them: their series, facts, profiles, samples and files."""
