"""A FastAPI service whose orders are charged and shipped by durable runs."""
