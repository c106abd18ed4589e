"""Routes of executions: their life, streams and events, and schedules."""
