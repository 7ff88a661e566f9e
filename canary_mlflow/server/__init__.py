"""The guard behind `mlflow server --app-name canary`: verdicts requested over HTTP, computed and signed here."""
