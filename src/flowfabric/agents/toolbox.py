"""The tools of one agent, by name, for agents written as plain functions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowfabric.agents.tool import Tool, tool
from flowfabric.core.base.errors import Invalid
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.sync import SyncContext


class Toolbox:
    """The tools of an agent: `Toolbox(refund, look_up)`. A plain function becomes a tool without
    conditions. A model is given `definitions`; what it asks for is called with `call`."""

    def __init__(self, *tools: Tool[Any, Any] | Callable[..., Any]) -> None:
        self._tools: dict[str, Tool[Any, Any]] = {}
        for each in tools:
            made = each if isinstance(each, Tool) else tool(each)
            if made.name in self._tools:
                raise Invalid(f"two tools are named {made.name!r}; give one of them another name")
            self._tools[made.name] = made

    def __iter__(self) -> Iterator[Tool[Any, Any]]:
        return iter(self._tools.values())

    def __getitem__(self, name: str) -> Tool[Any, Any]:
        found = self._tools.get(name)
        if found is None:
            known = ", ".join(sorted(self._tools)) or "none"
            raise Invalid(f"there is no tool {name!r} (known: {known})")
        return found

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Name, description and JSON schema of each tool, as the APIs of models take them."""
        return [
            {"name": each.name, "description": each.description, "parameters": each.parameters}
            for each in self
        ]

    async def call(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool with the arguments that a model proposes; see `Tool.call`. Raises Invalid,
        with a text that may be given to the model, if there is no such tool or the arguments do
        not fit."""
        return await self[name].call(ctx, **_named(name, arguments))

    def call_sync(self, ctx: SyncContext, name: str, arguments: Mapping[str, Any]) -> Any:
        """As `call`, in a task that is a plain function."""
        return self[name].call_sync(ctx, **_named(name, arguments))


def _named(name: str, arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        given = "" if isinstance(arguments, Mapping) else f", not {type(arguments).__name__}"
        raise Invalid(f"tool {name!r} needs an object with one member per parameter{given}")
    return dict(arguments)
