"""One module for each format of results."""
