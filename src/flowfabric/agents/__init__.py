"""Tools of agents as durable steps: each call is recorded, may need a person's approval of exactly
its arguments, and spends from budgets. `flowfabric.agents.pydantic_ai` is the adapter for Pydantic
AI; plain functions need none."""

from flowfabric.agents.errors import ToolRefused
from flowfabric.agents.tool import Tool, ToolCall, call_key, tool
from flowfabric.agents.toolbox import Toolbox

__all__ = ["Tool", "ToolCall", "ToolRefused", "Toolbox", "call_key", "tool"]
