"""The client for programs without an event loop: the same interface, each call waiting for its answer.

    with SyncSessionClient.connect() as client, client.session({"agent": agent}) as session:
        session.record({"kind": "tool_call", "call_id": "1", "tool": "search", "allowed": True})
    print(session.outcome.receipt)

Temporal's client is asynchronous; it lives on a loop in a thread of its own. All calls may come from any thread.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from affidavit.client import SessionClient, SessionHandle, Step
from affidavit.contract import (
    AdmitResult,
    Agent,
    FlushResult,
    IdentityResult,
    PromotionResult,
    SessionOutcome,
    SessionSpec,
    SessionView,
    SubmitResult,
)
from affidavit.handle import Redact
from affidavit.process import SessionProcess
from affidavit.reporter import Reporter, wait_for
from affidavit.sync_process import SyncGrants, SyncProcess
from affidavit.tools import ReportsTools
from affidavit.waking_api import WakesResult

__all__ = ["SyncGrants", "SyncProcess", "SyncSession", "SyncSessionClient"]

T = TypeVar("T")

JOIN_S: Final = 5.0
"""How long the end of a program waits for the loop's thread."""


class SyncSessionClient:
    """`SessionClient` for threads. Close it, or use it as a context manager; the end of the program closes it too."""

    def __init__(self, client: SessionClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """`connect` is the way to get one; the loop runs in the thread and belongs to this client."""
        self._client = client
        self._loop = loop
        self._end = weakref.finalize(self, _stop, loop, thread)

    @classmethod
    def connect(cls, **options: Any) -> Self:
        """Connect, with the options and the errors of `SessionClient.connect`."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(loop,), name="affidavit", daemon=True)
        thread.start()
        try:
            client = asyncio.run_coroutine_threadsafe(SessionClient.connect(**options), loop).result()
        except BaseException:
            _stop(loop, thread)
            raise
        return cls(client, loop, thread)

    def close(self) -> None:
        """End the client's thread. Sessions that are open stay open; steps that are not sent yet are lost."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, ask: Callable[[SessionClient], Coroutine[Any, Any, T]]) -> T:
        """Whatever else the asynchronous client can do: `client.run(lambda c: c.promote(session_id, generation))`."""
        return self._wait(lambda: ask(self._client))

    def open(
        self,
        spec: SessionSpec | Mapping[str, Any],
        *,
        session_id: str | None = None,
        key: str | None = None,
        reopen: bool = False,
        redact: Redact | None = None,
    ) -> SyncSession:
        """Open or join a session, as `SessionClient.open`."""

        async def opened() -> SessionHandle:
            return await self._client.open(spec, session_id=session_id, key=key, reopen=reopen, redact=redact)

        return SyncSession(self._wait(opened), self._loop)

    @contextmanager
    def session(
        self,
        spec: SessionSpec | Mapping[str, Any],
        *,
        session_id: str | None = None,
        key: str | None = None,
        reopen: bool = False,
        redact: Redact | None = None,
    ) -> Iterator[SyncSession]:
        """Open a session for the length of a block, as `SessionClient.session`."""
        with self.open(spec, session_id=session_id, key=key, reopen=reopen, redact=redact) as session:
            yield session

    def handle(self, session_id: str) -> SyncSession:
        """A session that exists somewhere, as `SessionClient.handle`."""

        async def made() -> SessionHandle:
            return self._client.handle(session_id)

        return SyncSession(self._wait(made), self._loop)

    def process(self, session_id: str, generation: str | None = None) -> SyncProcess:
        """A session as others see it, as `SessionClient.process`."""

        async def made() -> SessionProcess:
            return self._client.process(session_id, generation)

        return SyncProcess(self._wait(made), self._loop)

    def await_terminal(self, session_id: str, timeout: float | None = None) -> SessionOutcome:
        """Wait for a session's end, for `timeout` seconds at most (`TimeoutError`)."""
        return self.process(session_id).result(timeout)

    def terminal_state(self, session_id: str) -> SessionOutcome | None:
        """How a session has ended, None while it lives."""
        return self.process(session_id).terminal_state()

    @property
    def grants(self) -> SyncGrants:
        """Who may address which session."""
        return SyncGrants(self._client.grants, self._loop)

    def promote(self, session_id: str, generation: str) -> PromotionResult:
        """Have a trajectory attested, as `SessionClient.promote`."""
        return self._wait(lambda: self._client.promote(session_id, generation))

    def _wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return wait_for(self._loop, call)


class SyncSession(SyncProcess, ReportsTools):
    """`SessionHandle` for threads; each method does and raises what the one of the same name does there."""

    def __init__(self, handle: SessionHandle, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handle, loop)
        self._handle = handle

    @property
    def generation(self) -> str | None:
        """Which life of the id this is; None for one that was only named."""
        return self._handle.generation

    @property
    def outcome(self) -> SessionOutcome | None:
        """Set once `close` or `result` has returned it."""
        return self._handle.outcome

    def reporter(self) -> Reporter:
        """What a framework's callbacks report by, from any thread or event loop."""
        return Reporter(self._handle, self._loop)

    def run(self, ask: Callable[[SessionHandle], Coroutine[Any, Any, T]]) -> T:
        """Whatever else the asynchronous handle can do: `session.run(lambda handle: handle.flush())`."""
        return wait_for(self._loop, lambda: ask(self._handle))

    def record(self, *steps: Step) -> None:
        """Report steps; returns when they are buffered."""
        self.run(lambda handle: handle.record(*steps))

    def submit(self, *steps: Step) -> SubmitResult:
        """Report steps and wait until they are in the journal."""
        return self.run(lambda handle: handle.submit(*steps))

    def flush(self) -> FlushResult:
        """Wait until everything reported so far is in the journal."""
        return self.run(lambda handle: handle.flush())

    def admit(self, attempt_id: str | None = None, agent: Agent | None = None) -> AdmitResult:
        """Ask whether a model may be called."""
        return self.run(lambda handle: handle.admit(attempt_id, agent))

    def refresh_identity(self, agent: Agent) -> IdentityResult:
        """Renew the lifetime of the agent's credential."""
        return self.run(lambda handle: handle.refresh_identity(agent))

    def reset_breaker(self, *, by: str, reason: str) -> FlushResult:
        """Let a tripped loop breaker close again."""
        return self.run(lambda handle: handle.reset_breaker(by=by, reason=reason))

    def set_wait(self, *, kind: str, name: str) -> FlushResult:
        """Say what the session waits for."""
        return self.run(lambda handle: handle.set_wait(kind=kind, name=name))

    def clear_wait(self) -> FlushResult:
        """Say that it goes on."""
        return self.run(lambda handle: handle.clear_wait())

    def wake(self, input: Any, target: str | None = None) -> SubmitResult:
        """Wake another session, by a step of this one."""
        return self.run(lambda handle: handle.wake(input, target))

    def wakes_after(self, sequence: int = -1) -> WakesResult:
        """Wakes that came and are not acknowledged, of events strictly after one."""
        return self.run(lambda handle: handle.wakes_after(sequence))

    def ack_wake(self, sequence: int) -> None:
        """Acknowledge the wakes up to an event, that one included."""
        self.run(lambda handle: handle.ack_wake(sequence))

    def trajectory_ref(self) -> dict[str, Any]:
        """What a parent's `tool_result` says under `subagent_trajectory_ref`."""
        return self._handle.trajectory_ref()

    def close(self) -> SessionOutcome:
        """End the session and wait for its outcome."""
        return self.run(lambda handle: handle.close())

    def cancel(self) -> None:
        """Ask the session to end as cancelled."""
        self.run(lambda handle: handle.cancel())

    def receipt(self) -> dict[str, Any]:
        """The signed receipt, once the session has ended."""
        return self.run(lambda handle: handle.receipt())

    def promote(self) -> dict[str, Any]:
        """Close the session and have its trajectory attested; returns the receipt."""
        return self.run(lambda handle: handle.promote())

    def view(self) -> SessionView:
        """What an operator asks."""
        return self.run(lambda handle: handle.view())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block: AbstractAsyncContextManager[Any] = self._handle
        wait_for(self._loop, lambda: _left(block, kind, error, trace))


async def _left(
    block: AbstractAsyncContextManager[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    await block.__aexit__(kind, error, trace)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in (tasks := asyncio.all_tasks(loop)):
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Must not know the client, or the client would never be collected."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(JOIN_S)
