"""What runs a handler: the claim loop, slots, journal, heartbeat."""
