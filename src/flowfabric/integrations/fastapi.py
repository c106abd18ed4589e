"""FlowFabric in a FastAPI application: `FastAPI(lifespan=lifespan(fabric))`, and the fabric as a
dependency of an endpoint: `async def create(fabric: FabricDependency)`."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from flowfabric.fabric import Fabric
from flowfabric.integrations import starlette
from flowfabric.integrations.starlette import lifespan


async def get_fabric(connection: HTTPConnection) -> Fabric:
    """The fabric of the application that serves this request or WebSocket, as a dependency. Tests
    replace it with `app.dependency_overrides[get_fabric]`."""
    return starlette.get_fabric(connection)


FabricDependency = Annotated[Fabric, Depends(get_fabric)]
"""The fabric of the application, as the type of a parameter of an endpoint."""

__all__ = ["FabricDependency", "get_fabric", "lifespan"]
