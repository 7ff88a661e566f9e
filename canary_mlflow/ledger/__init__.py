"""The ledger: who promoted what, when and why, in rows that are chained and signed. Knows SQL, but not MLflow."""
