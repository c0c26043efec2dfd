"""The parts on their own: processor time of one call on one thread."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from activities.embedders import HashEmbedder
from activities.receipts import Receipts
from activities.signing import SigningActivity
from affidavit.activity_api import SealRequest
from affidavit.evidence.canonical import canonicalize
from affidavit.evidence.chain import extend, genesis
from affidavit.evidence.journal import domain_active, seal
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.layout import session_prefix
from affidavit.evidence.verify import verify_with_events
from benchmarks.pipeline import KEY, Pipeline
from benchmarks.results import Row, median, median_row
from benchmarks.steps import messages, text
from tests.support.stored import T0
from workers import collector

SIGNER: Final = Signer(bytes(range(1, 33)))
RING: Final = b'[{"public_key_b64": "%s"}]\n' % SIGNER.public_key_b64.encode()
STEPS: Final = 1_000
BATCH: Final = 20
MUST_US: Final = 400
AIM_US: Final = 250


def rows(pairs: int) -> Iterator[Row]:
    """All stages of a step, then the parts."""
    collector.spare()  # as a worker does
    with tempfile.TemporaryDirectory() as folder:
        whole, staged, parts = [], Counter[str](), list[list[Row]]()
        for pair in range(pairs):
            pipeline = Pipeline(Path(folder) / f"{pair}-whole")
            sent = messages(STEPS // BATCH, BATCH)
            started = time.process_time()
            for data in sent:
                pipeline.report(data)
            whole.append((time.process_time() - started) / STEPS * 1e6)
            pipeline.close()
            pipeline = Pipeline(Path(folder) / f"{pair}-staged", staged=True)
            for data in sent:
                pipeline.report(data)
            staged.update(pipeline.spent)
            pipeline.close()
            parts.append(list(_parts(pipeline)))
        shares = ", ".join(f"{stage} {spent / staged.total():.0%}" for stage, spent in staged.items())
        note = f"{median(whole) / _round_trip_us(_record(pipeline)):.0f} x a JSON round trip of an event; {shares}"
        yield Row(
            "Python CPU a step, all stages, 20 steps a signal, 1 KB of text",
            median(whole),
            "us",
            MUST_US,
            AIM_US,
            less_is_better=True,
            note=note,
        )
        yield from (median_row(each) for each in zip(*parts, strict=True))


def _folder(pipeline: Pipeline) -> Path:
    life = pipeline.session.life
    return pipeline.store_root / session_prefix(life.session_id, life.generation)


def _record(pipeline: Pipeline) -> dict[str, Any]:
    """A record of its journal."""
    line = sorted((_folder(pipeline) / "journal").iterdir())[1].read_bytes().splitlines()[0]
    record: dict[str, Any] = json.loads(line)["payload"]
    return record


def _round_trip_us(record: dict[str, Any]) -> float:
    return _cpu_us(200, lambda: json.loads(json.dumps(record["event"])))


def _parts(pipeline: Pipeline) -> Iterator[Row]:
    session, life, record = pipeline.session, pipeline.session.life, _record(pipeline)
    words, embedder, head = text(random.Random(1)), HashEmbedder(), genesis(life.session_id)
    domain, number, chunk = domain_active(life.session_id, life.generation), count(), b"x" * 20_000
    round_trip = _round_trip_us(record)

    def row(name: str, spent: float) -> Row:
        return Row(name, spent, "us", note=f"{spent / round_trip:.1f} x a JSON round trip of an event")

    yield row("embedding of 1 KB", _cpu_us(200, lambda: embedder.counts(words)))
    yield row("canonical JSON of an event", _cpu_us(200, lambda: canonicalize(record["event"])))
    yield row("chain, canonical JSON included", _cpu_us(200, lambda: extend(head, record["event"])))
    yield row("envelope of a journal record", _cpu_us(200, lambda: seal(KEY, domain, 1, record)))
    create = _wall_us(50, lambda: pipeline.store.create(f"sessions/{'0' * 32}/x/{next(number)}.ndjson", chunk))
    yield Row("append of a segment of 20 KB, synced", create, "us", note="elapsed time")
    receipts = Receipts(pipeline.store, SIGNER, Keyring.parse(RING))
    request = SealRequest(
        **session.claims().model_dump(), receipt_id="0198e1f0-0000-7000-8000-00000000000a", issued_at=T0 + 10**7
    )
    started = time.process_time()
    sealed = session.run(SigningActivity(pipeline.evidence, receipts).seal, request)
    yield Row(f"sealing, a step of {STEPS}", (time.process_time() - started) / STEPS * 1e6, "us")
    session.end(receipt=sealed.receipt)
    started = time.process_time()
    verify_with_events(None, _folder(pipeline), Keyring.parse(RING), [KEY])
    yield Row(f"verification, a step of {STEPS}", (time.process_time() - started) / STEPS * 1e6, "us")


def _cpu_us(times: int, call: Callable[[], object]) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times * 1e6


def _wall_us(times: int, call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times * 1e6
