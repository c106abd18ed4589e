"""Runs user functions: tasks, durable steps, the claiming loop and its heartbeat."""
