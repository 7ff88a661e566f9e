"""Which policy judges a model, and whether it was the one that did."""
