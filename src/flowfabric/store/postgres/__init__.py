"""The store for fleets: Postgres 15 and later, through a few dedicated connections."""

from flowfabric.store.postgres.store import PostgresStore, open_postgres

__all__ = ["PostgresStore", "open_postgres"]
