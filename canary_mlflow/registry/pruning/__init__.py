"""Large files that no champion, seal or open verdict needs any more."""
