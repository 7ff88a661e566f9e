"""Proximal policy optimisation on transformers.Trainer: one Trainer epoch is one PPO iteration."""
