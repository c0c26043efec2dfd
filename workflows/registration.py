"""Binding a session to its registration (pure; behaviours A2, A6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import Payload

from affidavit import contract
from affidavit.contract import SPEC_BYTES, SPEC_NESTING, SessionSpec, registration_hash
from affidavit.evidence.canonical import CanonicalError
from workflows.messages import Unreadable, check_nesting, one_argument, payload_text, read_model


class Refused(Exception):
    """Why a spec cannot open or join a session; `type` is one of the contract's stable types."""

    def __init__(self, type_: str, reason: str) -> None:
        super().__init__(reason)
        self.type = type_


@dataclass(frozen=True, slots=True)
class Registration:
    """A validated spec in its comparable form."""

    spec: SessionSpec
    form: dict[str, Any]
    sha256: str


def read_registration(payloads: Sequence[Payload]) -> Registration:
    """Read a spec as a client sent it: the only argument of a start.

    Raises:
        Refused: what is wrong with it, naming the field.
    """
    try:
        payload = one_argument(payloads)
        if len(payload.data) > SPEC_BYTES:
            raise Unreadable(f"{len(payload.data)} bytes, over the limit of {SPEC_BYTES}")
        check_nesting(payload_text(payload), SPEC_NESTING)
        spec = read_model(payload, SessionSpec)
        form = spec.registration()
        return Registration(spec, form, registration_hash(form))
    except (Unreadable, CanonicalError) as error:
        raise Refused(contract.REFUSED_BAD_SPEC, f"invalid session spec: {error}") from None


def check_same(bound: Registration, other: Registration) -> None:
    """That `other` may join a session bound to `bound`.

    Raises:
        Refused: by the field that differs.
    """
    if bound.sha256 == other.sha256:
        return
    if bound.spec.mode != other.spec.mode:
        raise Refused(contract.REFUSED_MODE, "session mode cannot change after open")
    if bound.spec.agent.triple() != other.spec.agent.triple():
        raise Refused(contract.REFUSED_IDENTITY, "session is bound to a different agent identity")
    fields = sorted(key for key in bound.form.keys() | other.form.keys() if bound.form.get(key) != other.form.get(key))
    raise Refused(contract.REFUSED_REGISTRATION, f"registration conflict: {', '.join(fields)}")
