"""What a run says about itself: its machine, work, data, metrics, and how it broke off."""
