"""A classifier that gains classes: its state, one update of it, what it says about its answers."""
