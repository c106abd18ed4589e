"""An agent that survives the death of its worker."""
