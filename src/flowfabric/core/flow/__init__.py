"""Graphs of executions: joins, progress, cancellation."""
