"""What a step costs in Python, stage by stage and as the product runs them, in one process and without Temporal."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from temporalio.api.common.v1 import Payload

from activities.buses.sqlite import SqliteBus
from activities.embedders import HashEmbedder
from activities.embedding import EmbeddingActivity
from activities.publishing import PublishingActivity
from activities.sealed import SealedEvidence
from affidavit.activity_api import JournalRequest
from affidavit.assessment import make_request
from affidavit.contract import SIGNAL_RECORD
from affidavit.converter import data_converter, raw_json
from affidavit.publishing_api import PublishRequest, PublishResult
from affidavit.stores.local import DirectoryStore
from tests.support.stored import T0, StoredSession
from workflows.attempts import Attempts
from workflows.decide import Decision, assessable, decide
from workflows.inbox import Inbox
from workflows.messages import message
from workflows.receiving import Receiver
from workflows.state import Ledger, SessionState

KEY: Final = bytes(range(32))


class Pipeline:
    """One session's stages around a store of its own, fed with messages."""

    def __init__(self, folder: Path, *, staged: bool = False) -> None:
        """`staged`: note in `spent` how long each stage takes, which itself takes time."""
        self._staged = staged
        self.store_root = folder / "store"
        self.store = DirectoryStore(self.store_root)
        self.evidence = SealedEvidence(self.store, [KEY])
        self.session = StoredSession(self.evidence, mode="signed")
        self._embedding = EmbeddingActivity(HashEmbedder())
        self._bus = SqliteBus(folder / "bus.sqlite")
        self._publishing = PublishingActivity(self.store, self._bus, [KEY])
        self._loop = asyncio.new_event_loop()  # one, as in a worker: a loop and its threads are dear to make
        self._published = 0
        self._converter = data_converter().payload_converter
        spec = self.session.spec
        self._state = SessionState(
            generation=self.session.life.generation,
            product_version="1",
            trajectory_id="t",
            registration_sha256="r",
            ledger=Ledger(agent=spec.agent),
        )
        self._inbox = Inbox(Receiver(self._state).receive)
        self.spent: dict[str, float] = {}

    def report(self, data: bytes) -> None:
        """Take one message through every stage."""
        payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
        with self._timing("read"):
            self._inbox.put([message(SIGNAL_RECORD, [payload], T0)])
            batch = self._inbox.cut()
        with self._timing("embed"):
            places = [place for place, item in enumerate(batch) if assessable(item)]
            vectors = self.session._ledger.breaker.vectors
            assessed = self._embedding.assess(make_request(vectors, [batch[place].value for place in places]))
        with self._timing("decide"):
            assessments = dict(zip(places, assessed.assessments, strict=True))
            ledger = self.session._ledger
            decision = decide(ledger, self.session.spec, batch, assessments, Attempts(), lambda: str(uuid.uuid4()))
        with self._timing("journal"):
            self._journal(decision)
        with self._timing("publish"):
            self._publish()

    def _journal(self, decision: Decision) -> None:
        session = self.session
        request = JournalRequest(
            **session._caller,
            content=session.spec.content,
            product_version="1",
            agent=session.spec.agent,
            head=session._ledger.head,
            entries=decision.entries,
        )
        steps = raw_json(('{"steps":[' + ",".join(decision.steps) + "]}").encode())
        journaled = session.run(session._journaling.journal, self._over_the_wire(request, JournalRequest), steps)
        session._ledger = decision.ledger
        session._ledger.head = journaled.head

    def _publish(self) -> None:
        """Read what is new back, check its MACs, and put it on the bus."""
        life, first = self.session.life, self._published
        request = PublishRequest(
            session_id=life.session_id,
            generation=life.generation,
            first=first,
            last=self.session.count - 1,
            store_id=self.store.store_id,
        )
        given = self._over_the_wire(request, PublishRequest)
        result: PublishResult = self._loop.run_until_complete(self.session.run(self._publishing.publish, given))
        self._published = result.last + 1

    def close(self) -> None:
        """Let go of the bus."""
        self._loop.run_until_complete(self._bus.close())
        self._loop.close()

    def _over_the_wire(self, value: Any, kind: type[Any]) -> Any:
        """What an activity gets of a value, or a workflow of its answer: as a payload and back."""
        return self._converter.from_payloads(self._converter.to_payloads([value]), [kind])[0]

    @contextmanager
    def _timing(self, stage: str) -> Iterator[None]:
        if not self._staged:
            yield
            return
        started = time.process_time()
        yield
        self.spent[stage] = self.spent.get(stage, 0.0) + time.process_time() - started
