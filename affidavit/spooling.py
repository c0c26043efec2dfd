"""Going on without Affidavit: a handle that spools what nobody takes, and the push that reports it later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from affidavit import contract
from affidavit.contract import (
    AdmitResult,
    Agent,
    AttachResult,
    CloseAccepted,
    FlushResult,
    SessionOutcome,
    SessionSpec,
    SessionView,
    SubmitResult,
)
from affidavit.converter import raw_json
from affidavit.errors import AffidavitUnavailable, SessionNotFound, SessionSpooled
from affidavit.evidence.text import printable
from affidavit.handle import Redact, SessionHandle
from affidavit.ids import new_session_id
from affidavit.outgoing import Encoded, Step, check_one_message
from affidavit.rpc import Line
from affidavit.spool import End, SpoolReader, SpoolWriter, joined, locked

if TYPE_CHECKING:
    from affidavit.client import SessionClient

NOTHING_YET = FlushResult(event_count=0, chain_head="", published_through=-1)
"""What a flush answers that has reached no journal."""


class SpoolingHandle(SessionHandle):
    """A session that goes on in a local file once nobody answers, and then stays there until its end.

    While it is spooled, `admit` admits everything: there is no breaker. `record`, `post`, `submit` and `flush` return
    when the steps are on the local disk; the answers of `submit` and `flush` say that no event is journaled. `close`,
    `cancel`, `result` and the questions raise `SessionSpooled`; leaving the `async with` block does not.
    """

    def __init__(
        self,
        client: SessionClient,
        session_id: str,
        attached: AttachResult | None,
        *,
        spec: SessionSpec,
        folder: Path,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(client, session_id, attached, redact=redact)
        self._spec = spec
        self._folder = folder
        self._spool: SpoolWriter | None = None
        self._owed: list[bytes] = []
        self._attempts: set[str] = set()
        self._leaving = asyncio.Lock()
        if attached is None:
            self._spool = self._created()

    @property
    def spool(self) -> Path | None:
        """The spool file, once there is one."""
        return self._spool.path if self._spool else None

    @property
    def closed(self) -> bool:
        """As of any handle; also once the spool says how the session ends."""
        return super().closed or (self._spool is not None and self._spool.closed)

    # -- reporting -------------------------------------------------------------------------------------

    def encoded(self, steps: Sequence[Step]) -> list[Encoded]:
        """As of any handle; a spooled step keeps the time at which it was reported."""
        return super().encoded([self._prepared(step) for step in steps])

    def post_encoded(self, steps: Sequence[Encoded]) -> None:
        """As of any handle."""
        if self._spool is None:
            super().post_encoded(steps)
        else:
            self._write(steps)

    async def record(self, *steps: Step) -> None:
        """As of any handle, but never for want of a server."""
        encoded = self.encoded(steps)
        self._tell()
        if self._spool is None:
            try:
                await self._sender.put(encoded)
            except AffidavitUnavailable:
                await self._leave()
            else:
                return
        self._write(encoded)

    async def submit(self, *steps: Step) -> SubmitResult:
        """As of any handle; spooled steps have no sequence yet."""
        encoded = self.encoded(steps)
        check_one_message(encoded, self._limit)
        tried: list[bytes] = []

        async def send(message: bytes) -> SubmitResult:
            tried.append(message)
            return await self._line.update(contract.UPDATE_SUBMIT, SubmitResult, raw_json(message))

        if self._spool is None:
            try:
                return await self._sender.alone(encoded, send)
            except AffidavitUnavailable:
                await self._leave(tried)
        if not tried:  # else the session may have them, under the numbers that they have
            self._write(encoded)
        return SubmitResult(
            first_sequence=None,
            last_sequence=None,
            chain_head=NOTHING_YET.chain_head,
            event_count=NOTHING_YET.event_count,
        )

    async def flush(self) -> FlushResult:
        """As of any handle; with `event_count` 0 where the steps are spooled."""
        if self._spool is None:
            try:
                return await super().flush()
            except AffidavitUnavailable:
                await self._leave()
        self._tell()
        return NOTHING_YET

    async def admit(
        self, attempt_id: str | None = None, agent: Agent | None = None, *, after: asyncio.Future[Any] | None = None
    ) -> AdmitResult:
        """As of any handle; accepted where nobody is there to ask."""
        attempt_id = attempt_id or new_session_id()
        if self._spool is None:
            try:
                result = await super().admit(attempt_id, agent, after=after)
            except AffidavitUnavailable:
                await self._leave()
            else:
                self._attempts.add(attempt_id)
                return result
        self._tell()
        return AdmitResult(accepted=True, attempt_id=attempt_id)

    # -- the end ---------------------------------------------------------------------------------------

    async def close(self) -> SessionOutcome:
        """As of any handle.

        Raises:
            SessionSpooled: it will be closed by the push.
        """
        if self._spool is None:
            try:
                return await super().close()
            except AffidavitUnavailable:
                await self._leave()
        raise self._end("close")

    async def cancel(self) -> None:
        """As of any handle.

        Raises:
            SessionSpooled: it will be cancelled by the push.
        """
        if self._spool is not None:
            raise self._end("cancel")
        await super().cancel()

    async def result(self) -> SessionOutcome:
        """As of any handle; of a spooled session `SessionSpooled`."""
        self._need_session()
        return await super().result()

    async def view(self) -> SessionView:
        """As of any handle; of a spooled session `SessionSpooled`."""
        self._need_session()
        return await super().view()

    async def terminal_state(self) -> SessionOutcome | None:
        """As of any handle; of a spooled session `SessionSpooled`."""
        self._need_session()
        return await super().terminal_state()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(SessionSpooled):
            if self._spool is not None:
                for call in self._on_leaving:
                    call()
                raise self._end("close" if error is None else "cancel")
            await super().__aexit__(kind, error, trace)

    async def _cancel(self) -> BaseException | None:
        try:
            return await super()._cancel()
        except AffidavitUnavailable:
            await self._leave()
        raise self._end("cancel")

    # -- the spool -------------------------------------------------------------------------------------

    async def _leave(self, first: Sequence[bytes] = ()) -> None:
        """Go on in the spool, behind everything that the server does not have for certain.

        Args:
            first: messages beside the sender's own that the server may have, or may not.
        """
        async with self._leaving:
            if self._spool is None:
                unsent = await self._sender.take_over()
                spool, first = self._created(), [*first, *unsent]
                self._spool = spool
            self._owed += first
            self._settle(self._spool)

    def _settle(self, spool: SpoolWriter) -> None:
        """Write what nobody else has. After a full disk it is still here, and goes before whatever is reported next."""
        while self._owed:
            spool.append(self._owed[0])
            del self._owed[0]

    def _created(self) -> SpoolWriter:
        spec = self._spec.model_dump(mode="json", exclude_none=True)
        return SpoolWriter(self._folder, session_id=self.session_id, generation=self.generation, spec=spec)

    def _write(self, steps: Sequence[Encoded]) -> None:
        # Not in a thread: a millisecond of the disk's keeps the order of the calls.
        if self._spool is None or self._spool.closed:
            raise SessionNotFound("the session has been closed")
        self._settle(self._spool)
        for step in steps:
            self._spool.append(self._sender.message([step]))

    def _prepared(self, step: Step) -> Step:
        """What a push can report in any case: an attempt that was opened, and a time that is not the push's."""
        attempt_id = step.get("attempt_id")
        if isinstance(attempt_id, str):
            if step.get("kind") == "model_request":
                self._attempts.add(attempt_id)
            elif attempt_id not in self._attempts:
                # Nobody has admitted it, so the session knows of no such attempt; its end would be inconsistent.
                step = {name: value for name, value in step.items() if name != "attempt_id"}
            else:
                self._attempts.discard(attempt_id)
        if self._spool is not None and "claimed_time" not in step:
            step = {**step, "claimed_time": _now()}
        return step

    def _end(self, how: End) -> SessionSpooled:
        """Write how the session ends, unless that is written; returns what to tell."""
        if self._spool is None:
            raise RuntimeError("this session is not spooled")
        if not self._spool.closed:
            self._settle(self._spool)
            self._spool.end(how)
        return SessionSpooled(f"spooled to {printable(self._spool.path.name)}; `affidavit spool push` reports it")

    def _need_session(self) -> None:
        if self._spool is not None:
            raise SessionSpooled(f"spooled to {printable(self._spool.path.name)}; there is no answer yet")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of a spool file. `outcome` is None where the session was left open, as its runtime had left it.

    `bad`: lines that could not be read and were not sent; `rejected`: what the session has rejected or left aside since
    the push began. With either, the file is the only place where they stand as they were, and is not removed.
    """

    session_id: str
    messages: int
    torn: bool
    outcome: SessionOutcome | None
    bad: int = 0
    rejected: int = 0

    @property
    def kept(self) -> bool:
        """Whether the file is still there, because not all of it was reported."""
        return self.bad > 0 or self.rejected > 0


async def push(client: SessionClient, path: Path) -> Pushed:
    """Report a spool file to its session, end that as its runtime did, and remove the file if all of it was taken.

    Whatever ends a push, the next one goes on: a step keeps its producer and number, so the session takes it once.

    Raises:
        SpoolBusy, SpoolError: the file is in other hands, gone, or none.
        SessionNotFound, SessionRefused: the session has ended meanwhile, or cannot be opened; the file stays.
        AffidavitUnavailable, SessionStalled: nobody answers yet; the file stays.
    """
    with locked(path) as file:
        spooled = file.read()
        progress = file.progress(len(spooled.messages))
        generation = spooled.generation or progress.generation
        if generation is None:
            handle = await client.open(spooled.spec, session_id=spooled.session_id)
            generation = handle.generation
            file.note(generation=generation)
        line = Line(client.temporal, spooled.session_id, generation, client.retry_timeout)
        before = progress.rejected
        if before is None and not progress.closing:
            before = _rejected(await line.query(contract.QUERY_VIEW, SessionView))
            file.note(rejected=before)
        if not progress.closing:
            await _deliver(file, line, spooled.messages, progress.sent)
            if spooled.end is not None:
                file.note(closing=True)
        outcome = await _ended(line, spooled.end) if spooled.end is not None else None
        rejected = _rejected(outcome or await line.query(contract.QUERY_VIEW, SessionView))
        pushed = Pushed(
            spooled.session_id,
            len(spooled.messages),
            spooled.torn,
            outcome,
            bad=spooled.bad,
            rejected=max(0, rejected - (before or 0)),
        )
        if not pushed.kept:
            file.remove()
    return pushed


def _rejected(told: SessionView | SessionOutcome) -> int:
    return told.rejected + told.late_steps + told.unprocessed


async def _deliver(file: SpoolReader, line: Line, messages: list[bytes], sent: int) -> None:
    for count, message in joined(messages[sent:]):
        await line.signal(message)
        sent += count
        file.note(sent=sent)
    # So that nothing is removed here that is not on disk there.
    await line.update(contract.UPDATE_FLUSH, FlushResult)


async def _ended(line: Line, how: End) -> SessionOutcome:
    with suppress(SessionNotFound):  # an earlier push has ended it
        if how == "cancel":
            await line.cancel()
        else:
            await line.update(contract.UPDATE_CLOSE, CloseAccepted)
    return await line.result()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
