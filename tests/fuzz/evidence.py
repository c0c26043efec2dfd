"""One session of each mode as it lies in a store, whose objects are then bent."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temporalio.api.common.v1 import Payload

from activities.receipts import Receipts
from activities.sealed import SealedEvidence
from activities.signing import SigningActivity
from activities.trajectory import TrajectoryActivity
from affidavit.activity_api import SealRequest
from affidavit.evidence.bundle import DirectoryReader, write_bundle
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.layout import session_prefix
from affidavit.stores.local import DirectoryStore
from tests.support.stored import T0, StoredSession

JOURNAL_KEY: Final = bytes(range(32))
SIGNER: Final = Signer(bytes(range(1, 33)))
RING_TEXT: Final = b'[{"public_key_b64": "%s"}]\n' % SIGNER.public_key_b64.encode()
RING: Final = Keyring.parse(RING_TEXT)

STEPS: Final[list[dict[str, Any]]] = [
    {
        "kind": "model_request",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "find the needle"}]},
        ],
        "attempt_id": "a1",
        "producer": "agent",
        "producer_seq": 1,
    },
    {
        "kind": "model_response",
        "text": "I will look.",
        "reasoning": "Where else?",
        "tool_calls": [{"call_id": "c1", "name": "search", "arguments": '{"q": "needle"}'}],
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost_usd": 0.25, "logprobs": [-0.5]},
        "attempt_id": "a1",
        "claimed_time": "2026-08-10T00:00:00Z",
    },
    {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True, "arguments": {"q": "needle"}},
    {"kind": "tool_call", "call_id": "c2", "tool": "rm", "allowed": False, "stage": "policy", "reason": "no"},
    {"kind": "tool_result", "call_id": "c1", "content": {"found": [1, 2.5, None]}, "ttl_remaining_s": 300},
    {"kind": "model_failure", "reason": "timeout", "status": 504, "extra": {"region": "north"}},
]


@dataclass(frozen=True)
class Stored:
    """A session in a store of its own."""

    root: Path
    session: StoredSession

    @property
    def prefix(self) -> str:
        """Where the session's objects are, by name."""
        return session_prefix(self.session.life.session_id, self.session.life.generation)

    @property
    def folder(self) -> Path:
        return self.root / self.prefix

    def files(self) -> list[str]:
        """Names of its objects below its folder."""
        return DirectoryReader(self.folder).list("")

    def with_file(self, name: str, data: bytes, elsewhere: Path) -> Path:
        """A copy of its folder in which one object is another; returns the copy's store."""
        shutil.copytree(self.root, elsewhere, dirs_exist_ok=True)
        elsewhere.joinpath(self.prefix, name).write_bytes(data)
        return elsewhere

    def bundle(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "session.zip"
            life = self.session.life
            write_bundle(DirectoryReader(self.root), life.session_id, life.generation, out)
            return out.read_bytes()


def stored(root: Path, mode: str) -> Stored:
    """A session of `STEPS`, ended and attested: signed by a receipt, unsigned by a trajectory."""
    store = DirectoryStore(root)
    store.create("public.json", RING_TEXT)
    evidence = SealedEvidence(store, [JOURNAL_KEY])
    session = StoredSession(evidence, mode=mode)
    session.report(*STEPS[:3])
    session.own("message_rejected", name="record", reason="not JSON", sha256="0" * 64, bytes=7)
    session.report(*STEPS[3:])
    claims = session.claims().model_dump()
    if mode == "signed":
        signing = SigningActivity(evidence, Receipts(store, SIGNER, RING))
        request = SealRequest(**claims, receipt_id=RECEIPT_ID, issued_at=T0 + 60_000)
        session.end(receipt=session.run(signing.seal, request).receipt)
    else:
        session.run(TrajectoryActivity(evidence).write, session.claims())
        session.end()
    return Stored(root, session)


RECEIPT_ID: Final = "0198e1f0-0000-7000-8000-00000000000a"


def signal(data: bytes, encoding: bytes = b"json/plain") -> Payload:
    """A signal's argument."""
    return Payload(metadata={"encoding": encoding}, data=data)
