"""Durations as an application writes them."""

from datetime import timedelta

Span = str | float | timedelta
"""`"1h30m"`, a number of seconds, or a `timedelta`. The engine counts milliseconds instead
(`core.base.time.Span`)."""
