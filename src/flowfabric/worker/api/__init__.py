"""What an application calls: tasks, runs, the context of a handler."""
