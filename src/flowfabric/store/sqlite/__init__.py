"""The store in one SQLite file."""

from flowfabric.store.sqlite.store import SqliteStore, open_sqlite

__all__ = ["SqliteStore", "open_sqlite"]
