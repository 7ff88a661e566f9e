"""Webhooks: news of a model for those who asked for it. Nothing is sent unless a webhook is configured."""
