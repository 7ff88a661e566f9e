"""Commands that stand on their own, one file each; `cli.py` registers them."""
