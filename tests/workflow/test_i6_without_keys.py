"""I6: a client without the codec key is told which one it lacks, and never given a stand-in for an answer."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from affidavit.doctor.sessions import SessionChecks
from affidavit.errors import AnswerUnreadable, SessionRefused
from tests.support.commands import command
from tests.support.encrypted import ID_A, KEY_A, with_keys
from tests.support.rig import AGENT, Rig

WHY = f"it is encrypted with key {ID_A}, whose file AFFIDAVIT_CODEC_KEY_FILES has to name here too"


async def test_i6_a_client_without_the_key_is_told_so_by_every_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_keys(rig, KEY_A).worker():
        name = f"keyless-{uuid.uuid4()}"
        with pytest.raises(AnswerUnreadable) as opened:
            await rig.client.open({"agent": AGENT}, session_id=name)
        assert str(opened.value) == f"session {name} is open, but its answer cannot be read: {WHY}"
        assert opened.value.key_id == ID_A
        session = rig.client.handle(name)
        answers: tuple[Callable[[], Awaitable[Any]], ...] = (session.flush, session.view, session.recent_events)
        for ask in (*answers, session.terminal_state):
            with pytest.raises(AnswerUnreadable) as asked:
                await ask()
            assert str(asked.value) == f"the answer of session {name} cannot be read: {WHY}"
        # A refusal is one all the same: its type is no secret.
        with pytest.raises(SessionRefused) as refused:
            await rig.client.open({"agent": AGENT, "mode": "unsigned"}, session_id=name)
        assert (refused.value.type, refused.value.reason) == ("ModeConflict", f"the reason cannot be read: {WHY}")

        for arguments in (("show", name), ("close", name), ("wait", name)):
            code, output, errors = await command(rig, monkeypatch, *arguments)
            assert (code, output) == (4, "")
            assert errors.splitlines() == [errors.rstrip("\n")]
            assert errors.startswith("error: the ")
            assert errors.endswith(f" cannot be read: {WHY}\n")
        with pytest.raises(AnswerUnreadable, match=f"the outcome of session {name} cannot be read"):
            await session.result()

        checked = await SessionChecks(rig.client).payloads()
        assert (checked.status, checked.what) == ("failed", f"what opened session {name} cannot be read: {WHY}")
        checked = await SessionChecks(with_keys(rig, KEY_A).client).payloads()
        assert (checked.status, checked.what) == ("ok", "those of the newest sessions, 1, can be opened")


async def test_i6_a_quarantine_is_told_without_the_key_as_an_outcome_that_cannot_be_read(rig: Rig) -> None:
    keyed = with_keys(rig, KEY_A)
    async with keyed.worker():
        session = await keyed.open()
        await keyed.client.temporal.get_workflow_handle(session.session_id).signal(
            "record", {"steps": [{"kind": "model_response", "attempt_id": "nobody", "text": "hi"}]}
        )
        assert (await session.close()).status == "quarantined"
    with pytest.raises(AnswerUnreadable, match=f"the outcome of session {session.session_id} cannot be read: {WHY}"):
        await rig.client.await_terminal(session.session_id)
