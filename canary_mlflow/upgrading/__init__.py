"""Another set of packages beside the one at hand: locked and built by uv, probed, and if it blocks taken apart."""
