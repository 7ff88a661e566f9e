"""News for those who asked for it: a session's own webhook, and MLflow's webhooks, which hear of the guard's moves."""
