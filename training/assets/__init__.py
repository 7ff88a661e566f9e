"""What the embedded canary needs and is not in git: a tiny model and its tokenizer, built once."""
