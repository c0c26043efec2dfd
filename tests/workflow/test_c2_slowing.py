"""C2: a handle that only signals slows down when its session's queue is full, and loses nothing by it."""

from __future__ import annotations

import asyncio

from affidavit.contract import Limits
from tests.support.bare import Bare, call
from tests.support.halves import store_of
from tests.support.oracle import attested
from tests.support.rig import Rig
from tests.support.taps import Outage, TapStore
from tests.support.waiting import eventually


async def test_c2_record_slows_down_while_the_queue_is_full(rig: Rig) -> None:
    outage = Outage(lambda: OSError(28, "No space left on device"))

    def before(name: str) -> None:
        if name.endswith("journal/000000000001.ndjson"):
            outage.strike()

    async with rig.worker(store=TapStore(store_of(rig), before=before)):
        session = await rig.open(limits=Limits(queue=100))
        bare = Bare(rig, session.session_id)
        reporting = asyncio.create_task(session.record(*(call(f"c{number}") for number in range(900))))
        await outage.met_times(1)
        # The first 192 go unasked; then the session is full, and so much is what it has for as long as it is.
        await eventually(bare.view, lambda view: view["queue_depth"] >= 128)
        met = outage.met
        await outage.met_times(met + 3)
        assert (await bare.view())["queue_depth"] <= 192
        outage.end()
        await reporting
        outcome = await session.close()
    assert [event["payload"]["call_id"] for event in attested(rig, outcome)[1:]] == [f"c{n}" for n in range(900)]
    assert (outcome.steps, outcome.repeated, outcome.rejected) == (900, 0, 0)
