"""The server's side of `flowfabric.remote`: operations of the engine, many in one request."""
