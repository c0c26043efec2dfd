"""What a handle does with steps before Temporal has them: batches, numbers, one in flight.

The transport is a stand-in, the clock is virtual.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from affidavit.contract import BATCH_BYTES, BATCH_STEPS, MESSAGE_BYTES
from affidavit.errors import AffidavitUnavailable, InvalidStep, MessageTooLarge, SessionNotFound, SessionRefused
from affidavit.outgoing import check_one_message
from affidavit.sending import BACKLOG_BYTES, BACKLOG_STEPS, LINGER_S, Sender
from affidavit.steps import STEP
from tests.support.transport import Transport, call, steps, texts
from tests.support.virtual_time import run

# -- when a batch goes out --------------------------------------------------------------------------------


def test_a_step_goes_out_when_its_time_is_up() -> None:
    async def main() -> None:
        transport = Transport()
        sender = Sender(transport)
        await sender.put(steps("a"))
        await asyncio.sleep(LINGER_S * 0.6)
        await sender.put(steps("b"))
        await asyncio.sleep(1)
        await sender.put(steps("c"))
        await asyncio.sleep(1)
        assert [len(record) for record in transport.records] == [2, 1]
        assert transport.times == pytest.approx([LINGER_S, 1 + 1.6 * LINGER_S])
        assert transport.names == ["a", "b", "c"]
        assert transport.numbers == [1, 2, 3]
        assert sender.backlog == 0

    run(main())


def test_a_full_batch_goes_out_at_once_and_none_is_larger() -> None:
    async def main() -> None:
        transport = Transport()
        sender = Sender(transport)
        for name in range(BATCH_STEPS - 1):
            await sender.put(steps(name))
        await asyncio.sleep(LINGER_S / 2)
        assert transport.messages == []
        await sender.put(steps(BATCH_STEPS - 1, *range(BATCH_STEPS, 2 * BATCH_STEPS + 5)))
        await asyncio.sleep(LINGER_S / 4)
        assert [len(record) for record in transport.records] == [BATCH_STEPS, BATCH_STEPS]
        await asyncio.sleep(1)
        assert [len(record) for record in transport.records] == [BATCH_STEPS, BATCH_STEPS, 5]
        assert transport.names == [str(name) for name in range(2 * BATCH_STEPS + 5)]

    run(main())


def test_bytes_fill_a_batch_too_and_a_larger_step_goes_alone() -> None:
    async def main() -> None:
        transport = Transport()
        sender = Sender(transport)
        quarter, large = "x" * (BATCH_BYTES // 4 - 200), "y" * (BATCH_BYTES + 1)
        sizes = [quarter] * 5 + [large, "small"]
        await sender.put(texts(*(call(n, reason=text) for n, text in enumerate(sizes))))
        await sender.drain()
        assert [[step["call_id"] for step in record] for record in transport.records] == [
            ["0", "1", "2", "3"],
            ["4"],
            ["5"],
            ["6"],
        ]
        # With its envelope: a full batch is not one of those that are kept outside of the history.
        assert [len(message) <= BATCH_BYTES for message in transport.messages] == [True, True, False, True]

    run(main())


def test_the_bytes_of_many_small_steps_are_counted_with_their_numbers() -> None:
    async def main() -> None:
        transport = Transport()
        sender = Sender(transport)
        for name in range(BATCH_STEPS):
            await sender.put(texts(call(name, reason="z" * 8_000)))
        await sender.drain()
        assert len(transport.records) > 1
        assert max(map(len, transport.messages)) <= BATCH_BYTES
        assert transport.numbers == list(range(1, BATCH_STEPS + 1))

    run(main())


# -- order, numbers, one in flight ------------------------------------------------------------------------


def test_one_message_is_in_flight_and_the_order_is_that_of_the_calls() -> None:
    async def main() -> None:
        transport = Transport(takes=0.3)
        sender = Sender(transport)

        async def report(who: int) -> None:
            for number in range(40):
                await sender.put(steps(f"{who}-{number}-a", f"{who}-{number}-b"))
                await asyncio.sleep(0.01)

        await asyncio.gather(*(report(who) for who in range(8)))
        await sender.drain()
        assert transport.most_at_once == 1
        assert transport.numbers == list(range(1, 8 * 80 + 1))
        for who in range(8):
            own = [name for name in transport.names if name.startswith(f"{who}-")]
            assert own == [f"{who}-{number}-{half}" for number in range(40) for half in "ab"]
        # What one call has reported stands together.
        assert all(
            transport.names[place + 1] == name[:-1] + "b" for place, name in enumerate(transport.names[::2]) if 0
        )
        pairs = list(zip(transport.names[::2], transport.names[1::2], strict=True))
        assert all(first[:-1] == second[:-1] for first, second in pairs)

    run(main())


def test_a_producer_is_a_name_of_its_own_and_a_runtime_keeps_its_numbers() -> None:
    async def main() -> None:
        transport = Transport()
        sender, other = Sender(transport), Sender(transport)
        assert sender.producer != other.producer
        STEP.validate_python(call("a", producer=sender.producer, producer_seq=1))
        own = texts(call("own", producer="mine", producer_seq=77))
        await sender.put([*steps("a"), *own, *steps("b")])
        await sender.drain()
        (record,) = transport.records
        found = [(step["call_id"], step["producer"], step["producer_seq"]) for step in record]
        assert found == [("a", sender.producer, 1), ("own", "mine", 77), ("b", sender.producer, 2)]
        assert transport.messages[0].startswith(b'{"steps":[{"kind":"tool_call","call_id":"a","tool":"search"')

    run(main())


def test_a_drain_sends_at_once_and_waits_for_what_was_there_before() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport = Transport(takes=0.01)
        sender = Sender(transport)
        await sender.drain()  # nothing to do
        await sender.put(steps("a"))
        await sender.drain()
        assert loop.time() == pytest.approx(0.01)
        await sender.put(steps("b"))
        draining = asyncio.create_task(sender.drain())
        await asyncio.sleep(0.005)
        # A stream of later steps does not keep it from its end.
        await sender.put(steps("c"))
        await draining
        assert transport.names == ["a", "b"]
        await sender.drain()
        assert transport.names == ["a", "b", "c"]

    run(main())


# -- bounds -----------------------------------------------------------------------------------------------


def test_a_full_backlog_slows_the_reporter_down() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport = Transport(takes=1.0)
        sender = Sender(transport)
        most = 0
        for name in range(10 * BATCH_STEPS):
            await sender.put(steps(name))
            most = max(most, sender.backlog)
        assert most == BACKLOG_STEPS
        assert loop.time() >= (10 * BATCH_STEPS - BACKLOG_STEPS) // BATCH_STEPS
        await sender.drain()
        assert transport.numbers == list(range(1, 10 * BATCH_STEPS + 1))

    run(main())


def test_a_backlog_is_bounded_in_bytes() -> None:
    async def main() -> None:
        transport = Transport(takes=1.0)
        sender = Sender(transport)
        text = "x" * (BATCH_BYTES // 2)
        for name in range(30):
            await sender.put(texts(call(name, reason=text)))
            assert sender.backlog * len(text) < BACKLOG_BYTES + len(text)
        await sender.drain()
        assert len(transport.names) == 30

    run(main())


def test_a_reporter_that_is_cancelled_while_it_waits_has_reported_nothing() -> None:
    async def main() -> None:
        transport = Transport(takes=1.0)
        sender = Sender(transport)
        await sender.put(steps(*range(BACKLOG_STEPS)))
        waiting = asyncio.create_task(sender.put(steps("cancelled", "too")))
        behind = asyncio.create_task(sender.put(steps("behind")))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await behind
        await sender.drain()
        assert transport.names == [*map(str, range(BACKLOG_STEPS)), "behind"]
        assert transport.numbers == list(range(1, BACKLOG_STEPS + 2))

    run(main())


# -- what is refused before it is taken -------------------------------------------------------------------


def test_a_bad_step_takes_its_call_with_it_and_no_number() -> None:
    with pytest.raises(InvalidStep, match=r"step 1: call_id: Field required"):
        texts(call("a"), {"kind": "tool_call"})
    with pytest.raises(InvalidStep, match="producer and producer_seq come together"):
        texts(call("a", producer="mine"))
    with pytest.raises(InvalidStep, match="there is no step to report"):
        texts()


@pytest.mark.parametrize("given", [[call("a"), call("b")], (call("a"),), []])
def test_a_list_in_the_place_of_a_step_says_how_to_pass_steps(given: Any) -> None:
    with pytest.raises(InvalidStep, match=r"^step 0 is a list; pass steps one by one: submit\(\*steps\)$"):
        texts(given)
    kinds = "model_request, model_response, model_failure, tool_call, tool_result, event, wake"
    with pytest.raises(InvalidStep, match=rf"^step 0: kind {'n' * 39}… is none of {kinds}$"):
        texts({"kind": "n" * 1000})
    with pytest.raises(InvalidStep, match=rf"^step 0: no kind of {kinds}$"):
        texts({})
    with pytest.raises(InvalidStep, match=r"^step 1 is no mapping, but of type str$"):
        texts(call("a"), "tool_call")


def test_an_oversize_step_is_named_by_its_number() -> None:
    with pytest.raises(MessageTooLarge, match=r"^step 2: the message has 15000\d\d bytes, the limit is 1500000$"):
        texts(call("a"), call("b"), call("c", reason="x" * 1_499_900))


def test_the_largest_step_still_fits_with_its_number() -> None:
    async def main() -> None:
        room = MESSAGE_BYTES
        with pytest.raises(MessageTooLarge) as too_large:
            texts(call("a", reason="x" * room))
        found = re.fullmatch(r"step 0: the message has (\d+) bytes, the limit is 1500000", str(too_large.value))
        assert found
        over = int(found[1]) - MESSAGE_BYTES
        transport = Transport()
        sender = Sender(transport)
        sender._next = 2**53
        await sender.put(texts(call("a", reason="x" * (room - over))))
        await sender.drain()
        assert len(transport.messages[0]) == MESSAGE_BYTES

    run(main())


def test_what_must_be_one_message_is_checked_as_one() -> None:
    with pytest.raises(MessageTooLarge, match="1025 steps in one message, the limit is 1024"):
        check_one_message(steps(*range(1025)), lambda: MESSAGE_BYTES)
    half = texts(call("a", reason="x" * 800_000))
    with pytest.raises(MessageTooLarge, match="the limit is 1500000"):
        check_one_message(half * 2, lambda: MESSAGE_BYTES)
    check_one_message(half * 2, lambda: 2 * MESSAGE_BYTES)


# -- errors of a send -------------------------------------------------------------------------------------


def test_an_error_is_told_once_and_the_steps_are_sent_again_under_the_same_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        transport = Transport(script=[AffidavitUnavailable("away"), AffidavitUnavailable("still away")])
        sender = Sender(transport)
        await sender.put(steps("a", "b"))
        await asyncio.sleep(1)
        with pytest.raises(AffidavitUnavailable, match=r"^away"):
            await sender.put(steps("lost to its caller"))
        await asyncio.sleep(1)  # tried again, in vain
        with pytest.raises(AffidavitUnavailable, match="still away"):
            await sender.put(steps("and this"))
        await sender.put(steps("c"))
        await sender.drain()
        assert transport.messages[0] == transport.messages[1]
        assert transport.numbers[4:] == [1, 2, 3]
        assert transport.names[4:] == ["a", "b", "c"]

    with caplog.at_level(logging.WARNING, "affidavit.sending"):
        run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "2 steps are not sent: away",
        "2 steps are not sent: still away",
    ]


def test_a_drain_tries_again_before_it_complains() -> None:
    async def main() -> None:
        transport = Transport(script=[AffidavitUnavailable("away")])
        sender = Sender(transport)
        await sender.put(steps("a"))
        await asyncio.sleep(1)
        await sender.drain()
        assert transport.names == ["a", "a"]
        assert transport.numbers == [1, 1]
        transport.script = [AffidavitUnavailable("again")] * 2
        await sender.put(steps("b"))
        with pytest.raises(AffidavitUnavailable, match="again"):
            await sender.drain()
        with pytest.raises(AffidavitUnavailable, match="again"):
            await sender.drain()
        await sender.put(steps("c"))  # it has been told already
        await sender.drain()
        assert transport.numbers[-2:] == [2, 3]

    run(main())


def test_everybody_who_waits_hears_of_the_failure() -> None:
    async def main() -> None:
        transport = Transport(takes=0.1, script=[AffidavitUnavailable("away")])
        sender = Sender(transport)
        await sender.put(steps(*range(BACKLOG_STEPS)))
        waiting = [
            asyncio.create_task(sender.put(steps("more"))),
            asyncio.create_task(sender.drain()),
            asyncio.create_task(sender.drain()),
        ]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [AffidavitUnavailable] * 3
        assert sender.backlog == BACKLOG_STEPS
        await sender.drain()
        assert sender.backlog == 0

    run(main())


def test_a_session_that_has_ended_takes_nothing_more_and_a_later_one_gets_nothing_of_it() -> None:
    async def main() -> None:
        transport = Transport(script=[SessionNotFound("no running session s")])
        sender = Sender(transport)
        await sender.put(steps("a"))
        await asyncio.sleep(1)
        with pytest.raises(SessionNotFound, match="no running session s; 1 steps were not taken"):
            await sender.drain()
        await sender.drain()  # told, and nothing is left
        await sender.put(steps("b"))
        await sender.drain()
        assert [(step["call_id"], step["producer_seq"]) for step in transport.records[-1]] == [("b", 2)]

    run(main())


def test_settle_returns_what_went_wrong_and_leaves_it_to_be_told() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport = Transport(script=[AffidavitUnavailable("away")])
        sender = Sender(transport)
        await sender.put(steps("a"))
        assert isinstance(await sender.settle(), AffidavitUnavailable)
        with pytest.raises(AffidavitUnavailable, match="away"):
            await sender.put(steps("b"))
        await sender.drain()
        assert await sender.settle() is None
        transport.takes = 60
        await sender.put(steps("c"))
        before = loop.time()
        unsent = await sender.settle(5)
        assert str(unsent) == "1 steps could not be sent in time"
        assert loop.time() - before == pytest.approx(5)
        await sender.drain()
        assert transport.numbers == [1, 1, 2]

    run(main())


# -- cancellation -----------------------------------------------------------------------------------------


def test_what_was_taken_is_sent_though_its_reporter_is_cancelled() -> None:
    async def main() -> None:
        transport = Transport(takes=0.5)
        sender = Sender(transport)

        async def report() -> None:
            await sender.put(steps("a"))
            await sender.drain()

        reporting = asyncio.create_task(report())
        await asyncio.sleep(0.2)
        reporting.cancel()
        await asyncio.sleep(1)
        assert transport.numbers == [1]
        assert sender.backlog == 0

    run(main())


def test_a_loop_that_ends_in_the_middle_of_a_send_sends_the_same_bytes_again() -> None:
    transport = Transport(takes=0.5)
    sender: Sender | None = None
    later: list[str] = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # As a `finally: await session.close()` of a task does, when the loop cancels them all.
            assert sender is not None
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await sender.drain()
            later.append("drained")

    async def main() -> None:
        nonlocal sender
        sender = Sender(transport)
        cleaning = asyncio.create_task(clean_up())
        await sender.put(steps("a", "b"))
        await asyncio.sleep(LINGER_S + 0.1)
        assert transport.at_once == 1
        await sender.put(steps("c"))
        assert not cleaning.done()

    run(main())
    assert later == ["drained"]
    assert transport.messages[0] == transport.messages[1]
    assert transport.numbers == [1, 2, 1, 2, 3]


def test_cancelled_sending_is_told_to_who_waits() -> None:
    async def main() -> None:
        transport = Transport(takes=1)
        sender = Sender(transport)
        await sender.put(steps("a"))
        draining = asyncio.create_task(sender.drain())
        await asyncio.sleep(0.5)
        assert sender._pump is not None
        sender._pump.cancel()
        with pytest.raises(AffidavitUnavailable, match="sending was cancelled; 1 steps are not sent yet"):
            await draining
        await sender.drain()
        assert transport.messages[0] == transport.messages[1]

    run(main())


# -- a message of its own (submit) ------------------------------------------------------------------------


def test_a_submit_comes_behind_what_was_recorded_and_before_what_comes_later() -> None:
    async def main() -> None:
        transport = Transport(takes=0.1)
        sender = Sender(transport)

        async def submit(message: bytes) -> str:
            await transport(message)
            return "answer"

        await sender.put(steps("a"))
        submitting = asyncio.create_task(sender.alone(steps("b", "c"), submit))
        await asyncio.sleep(0)
        await sender.put(steps("d"))
        assert await submitting == "answer"
        await sender.drain()
        assert [[step["call_id"] for step in record] for record in transport.records] == [["a"], ["b", "c"], ["d"]]
        assert transport.numbers == [1, 2, 3, 4]
        assert transport.most_at_once == 1

    run(main())


@pytest.mark.parametrize(
    ("error", "following"),
    [
        (SessionRefused("QueueFull", "queue full"), 1),
        (SessionRefused("SessionClosing", "session is closing"), 1),
        (SessionRefused("CaptureIncomplete", "the steps had got in"), 3),
        (SessionRefused("BadRequest", "one of them had another number before"), 3),
        (AffidavitUnavailable("nobody knows"), 3),
        (asyncio.CancelledError(), 3),
    ],
    ids=["queue full", "closing", "incomplete", "bad", "unknown", "cancelled"],
)
def test_numbers_are_used_again_only_where_it_is_certain_that_they_were_not_taken(
    error: BaseException, following: int
) -> None:
    async def main() -> None:
        transport = Transport(script=[error])
        sender = Sender(transport)
        with pytest.raises(type(error)):
            await sender.alone(steps("a", "b"), transport)
        await sender.put(steps("c"))
        await sender.drain()
        assert transport.records[-1][0]["producer_seq"] == following

    run(main())


def test_a_submit_does_not_overtake_what_could_not_be_sent() -> None:
    async def main() -> None:
        transport = Transport(script=[AffidavitUnavailable("away")])
        sender = Sender(transport)
        await sender.put(steps("a"))
        with pytest.raises(AffidavitUnavailable, match="away"):
            await sender.alone(steps("b"), transport)
        assert transport.names == ["a"]
        await sender.alone(steps("b"), transport)
        assert transport.names == ["a", "a", "b"]
        assert transport.numbers == [1, 1, 2]

    run(main())
