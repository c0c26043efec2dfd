"""The client: open a session, report steps, wait for its outcome.

    client = await SessionClient.connect()
    async with client.session(SessionSpec(agent=agent)) as session:
        await session.record({"kind": "tool_call", "call_id": "1", "tool": "search", "allowed": True})
    print(session.outcome.receipt)

Needs the `client` extra (temporalio).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, Literal

from temporalio import envconfig
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from affidavit import contract, describing
from affidavit.answers import readable
from affidavit.codec import EncryptionCodec
from affidavit.codec_keys import codec_from_environment
from affidavit.contract import AttachResult, PromotionResult, SessionOutcome, SessionSpec
from affidavit.converter import data_converter, encode_json, raw_json
from affidavit.errors import AffidavitUnavailable, SessionRefused
from affidavit.eventlog import SessionEvent
from affidavit.evidence.scalars import session_stem
from affidavit.evidence.text import printable
from affidavit.exiting import settle_at_exit
from affidavit.granting import Grants
from affidavit.grants import holder_of
from affidavit.handle import Redact, SessionHandle
from affidavit.ids import session_id_for
from affidavit.offloading import OpenedSessions
from affidavit.outgoing import Step, checked_id, checked_spec
from affidavit.pollers import WORKFLOWS, pollers
from affidavit.process import SessionProcess
from affidavit.process_api import Cursor
from affidavit.promoting import promote
from affidavit.reopening import check_reopenable, has_ended, last_end
from affidavit.rpc import RETRY_TIMEOUT_S, heard, persist, translated
from affidavit.spool import spool_folder
from affidavit.spooling import SpoolingHandle
from affidavit.stored import StoredSession
from affidavit.stores.base import EvidenceStore
from affidavit.stores.errors import EvidenceStoreMismatch, IntegrityError, StorePlaceError, TransientError
from affidavit.stores.place import StoreUrl, open_store

__all__ = ["Cursor", "SessionClient", "SessionEvent", "SessionHandle", "SessionProcess", "Step"]

DEFAULT_ADDRESS = "localhost:7233"
TASK_QUEUE_VARIABLE = "AFFIDAVIT_TASK_QUEUE"
"""The worker's setting of the same name, so that one environment serves both."""
CONNECT_TIMEOUT_S = 5.0
ADMIT_TIMEOUT_S = 5.0
"""How long an open or an admit may take before the client says what is missing."""
DIAGNOSIS_TIMEOUT_S = 2.0
OnUnavailable = Literal["raise", "spool"]


class SessionClient:
    """A connection to Temporal, seen as a place to open and find sessions.

    Safe to share between tasks of one event loop.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str = contract.TASK_QUEUE,
        admit_timeout: float = ADMIT_TIMEOUT_S,
        retry_timeout: float = RETRY_TIMEOUT_S,
        store: EvidenceStore | None = None,
        holder: str | None = None,
        on_unavailable: OnUnavailable = "raise",
        spool: Path | None = None,
    ) -> None:
        """Takes a connected Temporal client whose data converter is `affidavit.converter.data_converter(store)`.

        Args:
            task_queue: where workers poll for sessions.
            admit_timeout: seconds that an open or an admit may take.
            retry_timeout: seconds that a call may fail on end, where failing may pass, before its caller is told.
            store: the workers' evidence store, where this client shares it.
            holder: who this client addresses sessions as. Sessions that it did not open itself it then awaits, looks
                at, cancels and wakes only with a grant (docs/addressing.md); None checks nothing.
            on_unavailable: whether sessions go on in a spool file where nobody answers; else they raise.
            spool: the folder for spool files; by default as `AFFIDAVIT_SPOOL` says, else `.affidavit/spool`.
        """
        self.temporal = client
        self.holder = None if holder is None else checked_id(holder)
        self.admit_timeout = admit_timeout
        self.retry_timeout = retry_timeout
        self._store = store
        self._opened = OpenedSessions(store) if store is not None else ()
        self._task_queue = task_queue
        self.grants = Grants(client, task_queue, retry_timeout)
        self._spool = spool_folder(spool) if on_unavailable == "spool" else None

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        task_queue: str | None = None,
        admit_timeout: float = ADMIT_TIMEOUT_S,
        retry_timeout: float = RETRY_TIMEOUT_S,
        store: EvidenceStore | Path | StoreUrl | str | None = None,
        codec: EncryptionCodec | None = None,
        holder: str | None = None,
        on_unavailable: OnUnavailable = "raise",
        spool: Path | None = None,
    ) -> SessionClient:
        """Connect as the environment says (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, TLS, …), or to `address`.

        Args:
            task_queue: where workers poll for sessions; by default as `AFFIDAVIT_TASK_QUEUE` says.
            store: the workers' evidence store, its directory or its URL (`s3://bucket/prefix`), where this machine
                has it too. A message may then have up to 16 MiB, because a big one goes there and not through Temporal.
            codec: encrypts payloads; by default as `AFFIDAVIT_CODEC_KEY_FILES` says.
            holder: who this client addresses sessions as, see `SessionClient`.
            on_unavailable: what is done where no server or no worker answers. `raise`, the default, is to fail closed:
                no model is called that Affidavit has not admitted. `spool` is to go on, unadmitted and without the
                breaker, and to write what is reported to a file, which `affidavit spool push` reports later.
            spool: the folder for these files; by default as `AFFIDAVIT_SPOOL` says, else `.affidavit/spool`.

        Raises:
            AffidavitUnavailable: nothing answers there (unless it is to be spooled), or the place holds no evidence
                store.
            KeyFileError: a codec key that the environment names cannot be used.
        """
        if isinstance(store, Path | StoreUrl | str):
            store = await asyncio.to_thread(_existing, store)
        codec = codec or codec_from_environment()
        config = envconfig.ClientConfig.load_client_connect_config()
        target = address or config.get("target_host") or DEFAULT_ADDRESS
        config["target_host"] = target
        if namespace is not None:
            config["namespace"] = namespace
        settle_at_exit()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                client = await Client.connect(**config, data_converter=data_converter(store, codec))
        except (RuntimeError, TimeoutError, RPCError) as error:
            if on_unavailable != "spool":
                raise AffidavitUnavailable(_unanswered(target, error)) from None
            client = await Client.connect(**config, data_converter=data_converter(store, codec), lazy=True)
        return cls(
            client,
            task_queue=task_queue or os.environ.get(TASK_QUEUE_VARIABLE) or contract.TASK_QUEUE,
            admit_timeout=admit_timeout,
            retry_timeout=retry_timeout,
            store=store,
            holder=holder,
            on_unavailable=on_unavailable,
            spool=spool,
        )

    def message_bytes(self, session_id: str) -> int:
        """The largest message that a session takes from this client: more where both share an evidence store."""
        shared = session_stem(session_id) in self._opened
        return contract.STORED_MESSAGE_BYTES if shared else contract.MESSAGE_BYTES

    async def open(
        self,
        spec: SessionSpec | Mapping[str, Any],
        *,
        session_id: str | None = None,
        key: str | None = None,
        reopen: bool = False,
        redact: Redact | None = None,
    ) -> SessionHandle:
        """Open a session, or join the living one of that id if it was opened with an equal spec.

        Args:
            spec: how to open it; a mapping is validated.
            session_id: 1-128 bytes of 0x21-0x7e without `#`; a fresh UUIDv7 if left out.
            key: what the session is about, a ticket's number say, in place of an id: the same key is the same session
                (`affidavit.ids.session_id_for`).
            reopen: start another life of an id whose last one ended `closed` or `cancelled`. Where it is known to have
                ended otherwise nothing is started.
            redact: is given a copy of each step and returns what is reported of it. What it takes out has never left
                this process; the evidence then proves what it let through.

        Returns:
            A handle, once the opening event is on disk; of a child (`originator` and `wake_target` in its spec) also
            its first grant, which goes to the wake target.

        Raises:
            SessionRefused: the id or the spec is bad, the session is bound to another spec, closing, or ended.
            AnswerUnreadable: it is open, and this client lacks the key to what it answers.
            AffidavitUnavailable: no server or no worker answered within `admit_timeout`. Its `session_id` names what it
                has left in Temporal.
        """
        if key is not None:
            if session_id is not None:
                raise SessionRefused(contract.REFUSED_BAD_SPEC, "a session has an id or a key, not both")
            session_id = session_id_for(key)
        session_id = checked_id(session_id)
        checked = checked_spec(spec, reopen=reopen)
        if self._spool is None:
            return SessionHandle(self, session_id, await self._attached(session_id, checked), redact=redact)
        try:
            attached = await self._attached(session_id, checked)
        except (AffidavitUnavailable, RuntimeError):  # the latter is a lazy connection's own word for it
            return SpoolingHandle(self, session_id, None, spec=checked, folder=self._spool, redact=redact)
        return SpoolingHandle(self, session_id, attached, spec=checked, folder=self._spool, redact=redact)

    async def _attached(self, session_id: str, checked: SessionSpec) -> AttachResult:
        argument = raw_json(encode_json(checked.model_dump(mode="json", exclude_none=True)))

        async def attempt() -> AttachResult:
            start = self._start(session_id, checked, argument)
            with heard(start):
                answer: AttachResult = await self.temporal.execute_update_with_start_workflow(
                    contract.UPDATE_ATTACH,
                    argument,
                    start_workflow_operation=start,
                    result_type=AttachResult,
                    rpc_timeout=timedelta(seconds=self.admit_timeout),
                )
            return readable(answer, f"session {printable(session_id)} is open, but its answer")

        async def goes_on() -> bool:
            return True  # or the next attempt starts it, or is told why not

        with translated(session_id):
            try:
                async with asyncio.timeout(self.admit_timeout):
                    if checked.reopen:
                        check_reopenable(session_id, await self._last_end(session_id))
                    attached = await persist(attempt, within=self.admit_timeout, goes_on=goes_on)
            except WorkflowAlreadyStartedError:
                raise has_ended(session_id, await self._last_end(session_id)) from None
            except TimeoutError:
                raise await self._unopened(session_id) from None
        if checked.originator is not None and (holder := holder_of(checked.wake_target)) is not None:
            # The first grant of a child. Opening it again repeats what a crash has left out.
            await self.grants.grant(holder, session_id, descriptor="wake target", only_first=True)
        return attached

    async def _unopened(self, session_id: str) -> AffidavitUnavailable:
        """What an open has waited for in vain, and what it has left behind: its execution waits for a worker."""
        missing = await self.missing()
        try:
            async with asyncio.timeout(DIAGNOSIS_TIMEOUT_S):
                left = await self.temporal.get_workflow_handle(session_id).describe()
        except (RPCError, TimeoutError):
            return AffidavitUnavailable(missing)
        if left.status is not WorkflowExecutionStatus.RUNNING:
            return AffidavitUnavailable(missing)
        return AffidavitUnavailable(
            f"{missing}. Session {printable(session_id, 128)} is in Temporal and opens once a worker is there: "
            "open it again to join it, or cancel it by its handle",
            session_id=session_id,
        )

    async def _last_end(self, session_id: str) -> str | None:
        async def attempt() -> str | None:
            return await last_end(self.temporal, session_id, self.stored(session_id))

        async def goes_on() -> bool:
            return False

        return await persist(attempt, within=self.admit_timeout, goes_on=goes_on)

    @asynccontextmanager
    async def session(
        self,
        spec: SessionSpec | Mapping[str, Any],
        *,
        session_id: str | None = None,
        key: str | None = None,
        reopen: bool = False,
        redact: Redact | None = None,
    ) -> AsyncIterator[SessionHandle]:
        """Open a session for the length of a block, with the arguments and the errors of `open`.

        It is closed when the block is left, and cancelled, with stop reason 99, when the block raises. Where it raises
        because the session has refused to go on (a loop, a foreign identity), it is closed, and that is its reason.
        """
        handle = await self.open(spec, session_id=session_id, key=key, reopen=reopen, redact=redact)
        async with handle:
            yield handle

    def handle(self, session_id: str) -> SessionHandle:
        """A handle of a session that exists somewhere; nothing is asked of the server yet.

        Raises:
            SessionRefused: the id is none.
        """
        return SessionHandle(self, checked_id(session_id), None)

    async def check_grant(self, session_id: str) -> None:
        """That this client's holder may address a session.

        Raises:
            SessionRefused: type NotGranted.
        """
        if self.holder is not None:
            await self.grants.check(self.holder, session_id)

    def process(self, session_id: str, generation: str | None = None) -> SessionProcess:
        """A session as others see it, to be waited for, followed and asked; nothing is asked of the server yet.

        Args:
            generation: which life of the id; the newest if left out.

        Raises:
            SessionRefused: the id is none.
        """
        return SessionProcess(self, checked_id(session_id), generation)

    async def await_terminal(self, session_id: str) -> SessionOutcome:
        """Wait for a session's end; see `SessionProcess.result`."""
        return await self.process(session_id).result()

    async def terminal_state(self, session_id: str) -> SessionOutcome | None:
        """How a session has ended, None while it lives; see `SessionProcess.terminal_state`."""
        return await self.process(session_id).terminal_state()

    def stored(self, session_id: str) -> StoredSession | None:
        """A session as it lies in the evidence store; None if this client has none."""
        return None if self._store is None else StoredSession(self._store, session_id)

    async def sealed_outcome(self, session_id: str, generation: str | None = None) -> SessionOutcome | None:
        """The outcome sealed in the evidence store, of the newest life if none is named; None without any.

        Raises:
            SessionPruned: that life was pruned.
            SessionFailed: it cannot be read.
        """
        stored = self.stored(session_id)
        if stored is None:
            return None

        def read() -> SessionOutcome | None:
            life = generation or stored.latest()
            outcome = None if life is None else stored.outcome(life)
            if life is not None and outcome is None:
                stored.check_kept(life)
            return outcome

        return await asyncio.to_thread(read)

    async def promote(self, session_id: str, generation: str) -> PromotionResult:
        """Have the trajectory of an unsigned session attested, from what lies in the evidence store alone.

        Joins a promotion that is under way; a repeat gives the same receipt. A signed session gives its own.

        Raises:
            SessionRefused: the session has not ended, has nothing to attest, or its evidence is not what it was.
            AffidavitUnavailable: the server did not answer for `retry_timeout` on end.
        """
        return await promote(self.temporal, self._task_queue, session_id, generation, self.retry_timeout)

    @property
    def task_queue(self) -> str:
        """Where workers poll for this client's sessions."""
        return self._task_queue

    async def task_queue_polled(self) -> bool:
        """Whether some worker has asked for workflow tasks of the task queue of late."""
        with translated(self._task_queue):
            return bool(await pollers(self.temporal, self._task_queue, WORKFLOWS))

    async def missing(self) -> str:
        """What an open or an admit has waited for in vain."""
        seconds = f"{self.admit_timeout:g} s"
        try:
            async with asyncio.timeout(DIAGNOSIS_TIMEOUT_S):
                polled = await self.task_queue_polled()
        except (AffidavitUnavailable, TimeoutError):
            return f"the Temporal server did not answer within {seconds}"
        if not polled:
            return f"no worker polls task queue {printable(self._task_queue)}; `python -m workers` starts one"
        return f"no worker answered within {seconds}, though one polls {printable(self._task_queue)}"

    def _start(
        self, session_id: str, spec: SessionSpec, argument: RawValue
    ) -> WithStartWorkflowOperation[Any, SessionOutcome]:
        reuse = WorkflowIDReusePolicy
        return WithStartWorkflowOperation(
            contract.SESSION_WORKFLOW,
            argument,
            id=session_id,
            task_queue=self._task_queue,
            result_type=SessionOutcome,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=reuse.ALLOW_DUPLICATE if spec.reopen else reuse.REJECT_DUPLICATE,
            static_summary=describing.summary(spec.agent, spec.mode),
            static_details=describing.details(spec.agent, spec.content),
        )


def _unanswered(target: str, error: Exception) -> str:
    if isinstance(error, TimeoutError) or "ConnectionRefused" in str(error):
        return f"no Temporal server answers at {printable(target)}; `affidavit dev` starts one"
    return f"no Temporal server can be used at {printable(target)}: {printable(str(error), 300)}"


def _existing(place: Path | StoreUrl | str) -> EvidenceStore:
    try:
        return open_store(place, create=False)
    except (OSError, EvidenceStoreMismatch, IntegrityError) as error:
        name = printable(PurePath(str(place)).name)
        raise AffidavitUnavailable(f"{name} holds no evidence store that can be used") from error
    except (StorePlaceError, TransientError) as error:
        raise AffidavitUnavailable(f"the evidence store cannot be used: {error}") from error
