"""trajgym."""
