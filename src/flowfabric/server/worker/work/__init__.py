"""The worker data plane: everything a worker does, for programs with nothing but HTTP and JSON."""

from flowfabric.server.worker.work import claims, leases, registry, routes

HANDLERS = [*claims.HANDLERS, *leases.HANDLERS, *routes.HANDLERS, *registry.HANDLERS]
