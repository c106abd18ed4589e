"""Waiting for the outside world in a plain function: the same words, blocking."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, overload

from flowfabric.core.wait.token import Token
from flowfabric.worker.api.approval import Verdict
from flowfabric.worker.api.waits import Approval, Callback, Received, Span, WaitsApi

T = TypeVar("T")


class SyncCallback:
    """`Callback` for a plain function."""

    def __init__(self, callback: Callback[Any], block: Callable[[Any], Any]) -> None:
        self.id = callback.id
        self.token = callback.token
        self._callback = callback
        self._block = block

    def result(self, as_type: Any = Any, *, timeout: Span | None = None) -> Any:
        return self._block(self._callback.result(as_type, timeout=timeout))


class SyncApproval:
    """`Approval` for a plain function."""

    def __init__(self, approval: Approval, block: Callable[[Any], Any]) -> None:
        self.id = approval.id
        self._approval = approval
        self._block = block

    def token(self, approver: str | None = None, *, expires: Span | None = None) -> Token:
        token: Token = self._block(self._approval.token(approver, expires=expires))
        return token

    def verdict(self, *, timeout: Span | None = None) -> Verdict:
        verdict: Verdict = self._block(self._approval.verdict(timeout=timeout))
        return verdict


class SyncWaits:
    """The same words for a plain function, blocking."""

    _context: WaitsApi

    def _block(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    @overload
    def wait_for_signal(self, name: str, *, timeout: Span | None = None) -> Any: ...
    @overload
    def wait_for_signal(self, name: str, as_type: type[T], *, timeout: Span | None = None) -> T: ...
    def wait_for_signal(self, name: str, as_type: Any = Any, *, timeout: Span | None = None) -> Any:
        return self._block(self._context.wait_for_signal(name, as_type, timeout=timeout))

    def wait_for_any(self, *names: str, timeout: Span | None = None) -> Received:
        return self._block(self._context.wait_for_any(*names, timeout=timeout))

    def wait_for_all(self, *names: str, timeout: Span | None = None) -> dict[str, Any]:
        return self._block(self._context.wait_for_all(*names, timeout=timeout))

    def approval(
        self,
        name: str,
        *,
        of: int = 1,
        approvers: Sequence[str] = (),
        about: object = None,
        timeout: Span | None = None,
    ) -> Verdict:
        return self._block(
            self._context.approval(name, of=of, approvers=approvers, about=about, timeout=timeout)
        )

    def request_approval(
        self, name: str, *, of: int = 1, approvers: Sequence[str] = (), about: object = None
    ) -> SyncApproval:
        asked = self._context.request_approval(name, of=of, approvers=approvers, about=about)
        return SyncApproval(self._block(asked), self._block)

    def callback(self, name: str = "callback") -> SyncCallback:
        return SyncCallback(self._block(self._context.callback(name)), self._block)
