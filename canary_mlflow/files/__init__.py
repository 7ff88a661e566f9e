"""Reads training histories from files into series, without MLflow and torch."""
