"""The guard behind `mlflow server --app-name canary`: verdicts asked for over HTTP, computed and signed here."""
