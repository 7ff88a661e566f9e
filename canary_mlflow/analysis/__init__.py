"""A run, a session or a version as a study: read from the store once, then shown by every format of reports/."""
