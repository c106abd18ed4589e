"""An application whose worker cannot start."""

from collections.abc import AsyncIterator

from flowfabric import Fabric

fabric = Fabric("sqlite://:memory:")


@fabric.lifespan
async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
    if fabric.url:
        raise ConnectionError("no mail server")
    yield
