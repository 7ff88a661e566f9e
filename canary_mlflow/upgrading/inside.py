"""Loaded as a probe's `sitecustomize`: what `canary upgrade` does inside the command that it tries."""

import os

from canary_mlflow.upgrading import old_defaults, transcript
from canary_mlflow.upgrading.after_import import after

if __name__ == "sitecustomize":
    if given := os.environ.get(old_defaults.GIVEN):
        old_defaults.install(given)
    if folder := os.environ.get(transcript.FOLDER):
        transcript.Transcript(folder).watch()
        after("datasets", lambda module: module.disable_caching())  # beside a dataset saved to disk both sides cache
