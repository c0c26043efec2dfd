"""Documents that somebody else has written: whatever they are, they are read or refused by a named error."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.errors import IntegrityError
from activities.promotion import PromotionActivity
from activities.reading import Reading
from activities.receipts import Receipts
from activities.sealed import SealedEvidence
from affidavit.activity_api import PromoteRequest
from affidavit.evidence import receipt
from affidavit.evidence.bundle import DirectoryReader
from affidavit.evidence.capture import read_reported
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.journal import (
    JournalRecord,
    Metadata,
    domain_active,
    domain_metadata,
    open_envelope,
    parse_envelope,
    seal,
)
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import KeyFileError, decode_secret
from affidavit.evidence.ocsf import validate_event
from affidavit.evidence.strict import read_json
from affidavit.evidence.trajectory.compare import compare
from affidavit.evidence.trajectory.rebuild import rebuild_trajectory
from affidavit.evidence.trajectory.validate import read_trajectory, validate
from affidavit.evidence.verify import VerificationError, verify_receipt, verify_with_events
from affidavit.importing import NotARun, read_run
from affidavit.stores.local import DirectoryStore
from tests.fuzz.evidence import JOURNAL_KEY, RECEIPT_ID, RING, RING_TEXT, SIGNER, STEPS, Stored, stored
from tests.fuzz.mutations import altered, bad_json, bent, fuzzed, values
from tests.support.stored import T0, environment

_KEPT = tempfile.TemporaryDirectory()
SIGNED = stored(Path(_KEPT.name) / "signed", "signed")
UNSIGNED = stored(Path(_KEPT.name) / "unsigned", "unsigned")
LIFE = SIGNED.session.life


def promoted(root: Path) -> Stored:
    """An unsigned session whose trajectory was attested when it had ended."""
    made = stored(root, "unsigned")
    session_id, generation = made.session.life.session_id, made.session.life.generation
    evidence = made.session.evidence
    environment("TrajectoryPromotion", f"promote#{session_id}#{generation}", "run-1").run(
        PromotionActivity(evidence, Receipts(evidence.store, SIGNER, RING)).promote,
        PromoteRequest(
            session_id=session_id,
            generation=generation,
            receipt_id=RECEIPT_ID,
            issued_at=T0 + 60_000,
            event_uid="0198e1f0-0000-7000-8000-00000000000b",
        ),
    )
    return made


PROMOTED = promoted(Path(_KEPT.name) / "promoted")


def document(of: Stored, name: str) -> Any:
    return json.loads((of.folder / name).read_text())


RECEIPT = document(SIGNED, "receipt.json")
TRAJECTORY = document(UNSIGNED, "trajectory.json")
METADATA = document(SIGNED, "metadata.json")["payload"]
RECORD = json.loads((SIGNED.folder / "journal/000000000001.ndjson").read_text().splitlines()[0])


def test_the_documents_that_are_bent_are_good_before() -> None:
    verify_receipt(json.dumps(RECEIPT).encode(), RING)
    assert verify_with_events(None, SIGNED.folder, RING, [JOURNAL_KEY]).trusted
    assert validate(TRAJECTORY) == []
    assert Metadata.read(METADATA).mode == "signed"


@fuzzed
@given(st.binary(max_size=64) | bad_json(RECEIPT))
def test_a_receipt(data: bytes) -> None:
    with contextlib.suppress(EvidenceError):
        receipt.verify(receipt.parse(data), RING)
    try:
        report = verify_receipt(data, RING)
    except VerificationError:
        return
    assert report.trusted
    assert json.loads(data) == RECEIPT  # whatever was changed, the signature does not cover


@fuzzed
@given(st.binary(max_size=64) | bad_json(json.loads(RING_TEXT)) | bent(RING_TEXT))
def test_a_keyring(data: bytes) -> None:
    with contextlib.suppress(EvidenceError):
        Keyring.parse(data)


@fuzzed
@given(st.text(max_size=80) | bent(b"00" * 32).map(lambda data: data.decode("latin-1")))
def test_a_secret(text: str) -> None:
    with contextlib.suppress(KeyFileError):
        decode_secret(text, name="AFFIDAVIT_SIGNING_SEED")


@fuzzed
@given(st.binary(max_size=64) | bad_json(TRAJECTORY), st.sampled_from(["strict", "lenient"]))
def test_a_trajectory(data: bytes, profile: str) -> None:
    with contextlib.suppress(EvidenceError):
        read_trajectory(data, profile=profile)  # type: ignore[arg-type]
    try:
        run = read_run(data)
    except NotARun:
        return
    # What is taken can be reported: every step of it is one that a session takes.
    assert all(step["kind"] for turn in run.turns() for step in turn)


@fuzzed
@given(altered(TRAJECTORY) | values, altered(TRAJECTORY) | values)
def test_two_trajectories_that_are_compared(one: Any, other: Any) -> None:
    compare(one, other)
    validate(one)


@fuzzed
@given(st.binary(max_size=64) | bad_json(RECORD))
def test_an_envelope(data: bytes) -> None:
    domain = domain_active(LIFE.session_id, LIFE.generation)
    try:
        parse_envelope(data)
        payload = open_envelope(data, keys=[JOURNAL_KEY], domain=domain, index=1)
    except EvidenceError:
        return
    assert payload == RECORD["payload"]


@fuzzed
@given(altered(RECORD["payload"]), altered(METADATA))
def test_a_payload_under_a_good_mac(record: Any, metadata: Any) -> None:
    readers: list[tuple[Any, str, int, Callable[[Any], Any]]] = [
        (record, domain_active("s", LIFE.generation), 1, lambda payload: JournalRecord.read(payload, index=1)),
        (metadata, domain_metadata("s", LIFE.generation), 0, Metadata.read),
    ]
    for payload, domain, index, read in readers:
        try:
            sealed = seal(JOURNAL_KEY, domain, index, payload)
            read(open_envelope(sealed, keys=[JOURNAL_KEY], domain=domain, index=index))
        except EvidenceError:
            continue
    validate_event(record.get("event") if isinstance(record, dict) else record)


def _every_reader(root: Path, of: Stored) -> None:
    """Everybody who reads a store reads it, or refuses it by name."""
    life = of.session.life
    for keys in ([JOURNAL_KEY], None):
        with contextlib.suppress(VerificationError):
            verify_with_events(None, root / of.prefix, RING, keys)
    with contextlib.suppress(EvidenceError, FileNotFoundError):
        rebuild_trajectory(
            DirectoryReader(root), life.session_id, life.generation, io.BytesIO(), journal_keys=[JOURNAL_KEY]
        )
    evidence = SealedEvidence(DirectoryStore(root), [JOURNAL_KEY])
    with contextlib.suppress(IntegrityError):
        of.session.run(_read_all, evidence, of)


def _read_all(evidence: SealedEvidence, of: Stored) -> None:
    life = of.session.life
    domain = domain_metadata(life.session_id, life.generation)
    try:
        metadata = Metadata.read(evidence.read(f"{of.prefix}/metadata.json", domain, 0))
    except EvidenceError:
        return
    list(Reading.of(life, metadata).segments(evidence, captures=True))


@st.composite
def bent_object(draw: st.DrawFn, content: bytes) -> bytes:
    """An object of a store after edits of a document in it, which may leave it JSON, or of its bytes."""
    if draw(st.integers(0, 2)) == 2:
        return draw(bent(content))
    try:
        parts, documents = [content], [json.loads(content)]
    except json.JSONDecodeError:
        parts = content.splitlines()
        try:
            documents = [json.loads(line) for line in parts]
        except json.JSONDecodeError:  # no JSON at all
            return draw(bent(content))
    place = draw(st.integers(0, len(parts) - 1))
    still_json = altered(documents[place]).map(lambda document: json.dumps(document).encode())
    parts[place] = draw(still_json | bad_json(documents[place]))
    return b"\n".join(parts) + b"\n"


@pytest.mark.parametrize("of", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
@fuzzed
@given(st.data())
def test_a_store_of_which_one_object_is_bent(of: Stored, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(of.files()))
    content = data.draw(bent_object((of.folder / name).read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        _every_reader(of.with_file(name, content, Path(folder) / "copy"), of)


@fuzzed
@given(st.binary(max_size=64) | bent(SIGNED.bundle()))
def test_a_bundle(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.zip"
        path.write_bytes(b"PK" + data if data[:2] != b"PK" else data)
        with contextlib.suppress(VerificationError):
            verify_with_events(None, path, RING, [JOURNAL_KEY])


def members(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(contents: Mapping[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


BUNDLES = {"signed": members(SIGNED.bundle()), "promoted": members(PROMOTED.bundle())}


def test_the_bundles_that_are_zipped_anew_are_good_before(tmp_path: Path) -> None:
    for kind, contents in BUNDLES.items():
        path = zipped(contents, tmp_path / f"{kind}.zip")
        assert verify_with_events(None, path, RING, [JOURNAL_KEY]).trusted
    assert "trajectory.json" in BUNDLES["promoted"]


@pytest.mark.parametrize("kind", ["signed", "promoted"])
@fuzzed
@given(st.data())
def test_a_bundle_of_which_one_member_is_bent(kind: str, data: st.DataObject) -> None:
    """Zipped anew, so that no checksum of the file tells."""
    contents = BUNDLES[kind]
    name = data.draw(st.sampled_from(sorted(contents)))
    content = data.draw(bent_object(contents[name]))
    with tempfile.TemporaryDirectory() as folder:
        path = zipped({**contents, name: content}, Path(folder) / "session.zip")
        with contextlib.suppress(VerificationError):
            verify_with_events(None, path, RING)
        try:
            report = verify_with_events(None, path, RING, [JOURNAL_KEY])
        except VerificationError:
            return
    assert report.trusted
    # What is believed says what it said, or is what nobody attests.
    assert name in ("README.txt", "public.json") or said(content) == said(contents[name])


def said(content: bytes) -> list[Any]:
    """What an object says, whichever way it is spelt."""
    try:
        return [json.loads(content)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in content.splitlines()]


EVENTS = [
    {"generation": LIFE.generation, "event": json.loads(line)["payload"]["event"]}
    for file in sorted((SIGNED.folder / "journal").iterdir())
    for line in file.read_text().splitlines()
]


@fuzzed
@given(st.data())
def test_a_dump_of_the_bus(data: st.DataObject) -> None:
    lines = [json.dumps(entry).encode() for entry in EVENTS]
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = data.draw(bad_json(EVENTS[place]))
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.ndjson"
        dump.write_bytes(b"\n".join(lines))
        with contextlib.suppress(VerificationError):
            verify_with_events(json.dumps(RECEIPT).encode(), dump, RING)


@fuzzed
@given(st.binary(max_size=64) | st.sampled_from(STEPS).flatmap(bad_json))
def test_json_and_captures(data: bytes) -> None:
    with contextlib.suppress(EvidenceError):
        read_json(data)
    # What reads like a step is normalised elsewhere: see test_foreign_messages.
    with contextlib.suppress(ValueError):
        read_reported(data)


def teardown_module() -> None:
    shutil.rmtree(_KEPT.name, ignore_errors=True)
