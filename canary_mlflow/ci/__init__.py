"""Puts the report where a change is discussed: on the pull request."""
