"""Webhooks: what became of a model, told to whoever asked for it. Nothing leaves unless a file of webhooks is named."""
