"""The live pages under /canary: what runs, what was judged, who was champion. Read-only, and without the internet."""
