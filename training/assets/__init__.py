"""What the embedded canary needs and git does not hold: a tiny model and its tokenizer, built once."""
