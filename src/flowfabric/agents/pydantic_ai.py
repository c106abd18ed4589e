"""Agents of Pydantic AI as durable runs: `Agent(DurableModel(…), toolsets=[DurableToolset(…)])`.

Within a task, each answer of the model and each call of a tool is a step of the run. Elsewhere,
for example in a unit test of the agent, the model is used as it is, and the tools are refused.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from flowfabric.agents.errors import ToolRefused
from flowfabric.agents.tool import Tool
from flowfabric.agents.toolbox import Toolbox
from flowfabric.core.base.errors import BudgetExceeded, Invalid
from flowfabric.worker.api.context import Context
from flowfabric.worker.run.steps import StepFunction, StepOptions, current_context

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_ANYTHING = SchemaValidator(schema=core_schema.any_schema())


class DurableModel(WrapperModel):
    """A model whose answers are recorded: a run that continues does not ask again. With `reserve`,
    each request sets these amounts aside in the budgets of the run, or in the one named by
    `budget`; the tokens that were used are settled as `tokens`."""

    def __init__(
        self,
        model: Model | str,
        *,
        reserve: Mapping[str, int] | None = None,
        budget: str | None = None,
    ) -> None:
        super().__init__(model)  # type: ignore[arg-type]  # any name of a model
        self._reserve = reserve
        self._budget = budget

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> Any:
            found = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return _RESPONSE.dump_python(found, mode="json")

        ctx = _current_context()
        if ctx is None:
            return _RESPONSE.validate_python(await ask())
        step: Callable[..., Any] = StepFunction(ask, StepOptions(name=f"model:{self.model_name}"))
        if self._reserve is None:
            return _RESPONSE.validate_python(await ctx.step(step))
        async with ctx.reserve(self._reserve, budget=self._budget) as reserved:
            response = _RESPONSE.validate_python(await ctx.step(step))
            used = {"tokens": response.usage.total_tokens} if "tokens" in self._reserve else {}
            reserved.settle({**self._reserve, **used})
        return response


class DurableToolset(AbstractToolset[Any]):
    """Tools of `flowfabric.agents` for an agent of Pydantic AI: `DurableToolset(refund)`. They are
    called one after the other, so that a run that continues calls them in the same order. The
    model gets what it can react to: wrong arguments, a refusal, a spent budget."""

    def __init__(
        self, *tools: Tool[Any, Any] | Callable[..., Any], id: str | None = None, retries: int = 1
    ) -> None:
        self._box = Toolbox(*tools)
        self._id = id
        self._retries = retries

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {each.name: self._offer(each) for each in self._box}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        run = _current_context()
        if run is None:
            raise Invalid(f"tool {name!r} is called by an agent outside of a run; submit a task")
        try:
            return await self._box.call(run, name, tool_args)
        except Invalid as error:
            raise ModelRetry(error.detail) from error
        except (ToolRefused, BudgetExceeded) as error:
            return str(error)

    def _offer(self, each: Tool[Any, Any]) -> ToolsetTool[Any]:
        definition = ToolDefinition(
            name=each.name,
            description=each.description,
            parameters_json_schema=each.parameters,
            sequential=True,
        )
        return ToolsetTool(
            toolset=self,
            tool_def=definition,
            max_retries=self._retries,
            args_validator=_ANYTHING,
        )


def _current_context() -> Context | None:
    make_context = current_context.get()
    if make_context is None:
        return None
    found = make_context()
    if not isinstance(found, Context):
        raise Invalid("an agent of Pydantic AI needs a task that is a coroutine function")
    return found
