"""The report where a change is discussed: the pull request."""
