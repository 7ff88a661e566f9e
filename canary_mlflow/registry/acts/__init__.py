"""What people do by hand: a champion, an exception, a key; each with a name and a reason."""
