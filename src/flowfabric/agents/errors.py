"""The error an agent gets for a tool call that was not made."""

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.worker.api.approval import Verdict


class ToolRefused(FlowFabricError):
    """The tool was not called, because its approval did not end in a yes. `verdict` says how it
    ended, and who decided what."""

    code = "tool_refused"

    def __init__(self, tool: str, verdict: Verdict) -> None:
        comments = "; ".join(each.comment for each in verdict.decisions if each.comment)
        text = f"the call of {tool} was not approved: {verdict.ended}"
        super().__init__(f"{text} ({comments})" if comments else text)
        self.tool = tool
        self.verdict = verdict
