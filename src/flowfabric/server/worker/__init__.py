"""Routes of workers: what is known of them, and the work that they claim."""
