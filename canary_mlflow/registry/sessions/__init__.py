"""Sessions as evidence: their rows in the ledger, their versions, and how often the same code was tried."""
