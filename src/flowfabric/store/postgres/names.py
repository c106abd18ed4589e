"""The interned routes and workers: learned once, kept for ever."""

from collections.abc import Hashable, Iterable
from functools import partial

from flowfabric.core.execution.model import Route, WorkerIdentity
from flowfabric.core.execution.routing import satisfies
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.link import Link
from flowfabric.store.queries import ClaimCall
from flowfabric.store.rows.execution import Names


class NameBook:
    """What this process knows of the database's names. Numbers become visible in the order they
    were given, so everything up to the newest known one is known."""

    def __init__(self, link: Link, queries: dict[str, str]) -> None:
        self._link = link
        self._queries = queries
        self.names = Names()
        self.newest_route = 0
        self.newest_worker = 0
        self._suiting: dict[Hashable, list[int]] = {}

    async def need_routes(self, routes: set[Route]) -> None:
        """Afterwards each of the routes has a number."""
        missing = [route for route in routes if route not in self.names.route_numbers]
        if missing:
            await self._link.run(partial(self._intern_routes, missing))

    async def need_workers(self, workers: Iterable[WorkerIdentity]) -> None:
        known = self.names.worker_numbers
        missing = {worker for worker in workers if worker not in known}
        if missing:
            await self._link.run(partial(self._intern_workers, missing))

    async def learn(self, connection: Connection, route: int, worker: int = 0) -> None:
        """Learns what was added since, if a number seen is newer than what is known."""
        if route > self.newest_route:
            self._add_routes(await self._routes_after(connection))
        if worker > self.newest_worker:
            self._add_workers(await self._workers_after(connection))

    def suiting(self, call: ClaimCall) -> list[int]:
        """The routes a claim may take from, among those known."""
        asked = (call.capabilities, call.lanes, call.namespace, call.kinds)
        found = self._suiting.get(asked)
        if found is None:
            if len(self._suiting) > 1000:
                self._suiting.clear()
            found = [number for number, route in self.names.routes.items() if _suits(route, call)]
            self._suiting[asked] = found
        return found

    async def _intern_routes(
        self, missing: Iterable[Route], connection: Connection, repeated: bool
    ) -> None:
        async with connection.transaction():
            await connection.execute(self._queries["names_lock"])
            found = await self._routes_after(connection)
            known = self.names.route_numbers.keys() | {route for _, route in found}
            for route in sorted(set(missing) - known, key=repr):
                capabilities = ",".join(route.capabilities)
                names = (route.namespace, route.lane, route.kind, capabilities)
                await connection.execute(self._queries["new_route"], *names)
            found = await self._routes_after(connection)
        self._add_routes(found)

    async def _intern_workers(
        self, missing: Iterable[WorkerIdentity], connection: Connection, repeated: bool
    ) -> None:
        async with connection.transaction():
            await connection.execute(self._queries["names_lock"])
            found = await self._workers_after(connection)
            known = self.names.worker_numbers.keys() | {worker for _, worker in found}
            for worker in sorted(set(missing) - known, key=repr):
                await connection.execute(self._queries["new_worker"], worker.id, worker.instance)
            found = await self._workers_after(connection)
        self._add_workers(found)

    async def _routes_after(self, connection: Connection) -> list[tuple[int, Route]]:
        rows = await connection.fetch(self._queries["routes_after"], self.newest_route)
        return [
            (number, Route(namespace, lane, kind, tuple(tokens.split(",")) if tokens else ()))
            for number, namespace, lane, kind, tokens in rows
        ]

    async def _workers_after(self, connection: Connection) -> list[tuple[int, WorkerIdentity]]:
        rows = await connection.fetch(self._queries["workers_after"], self.newest_worker)
        return [(number, WorkerIdentity(id, instance)) for number, id, instance in rows]

    def _add_routes(self, found: list[tuple[int, Route]]) -> None:
        for number, route in found:
            self.names.add_route(number, route)
            self.newest_route = max(self.newest_route, number)
        self._suiting.clear()

    def _add_workers(self, found: list[tuple[int, WorkerIdentity]]) -> None:
        for number, worker in found:
            self.names.add_worker(number, worker)
            self.newest_worker = max(self.newest_worker, number)


def _suits(route: Route, call: ClaimCall) -> bool:
    return (
        (not call.lanes or route.lane in call.lanes)
        and (call.namespace is None or route.namespace == call.namespace)
        and (call.kinds is None or route.kind in call.kinds)
        and satisfies(route.capabilities, call.capabilities)
    )
