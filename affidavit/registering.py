"""The search attributes on a Temporal server: what is there, and registering what is not. Needs the client extra."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from affidavit.attributes import SEARCH_ATTRIBUTES, ValueType
from affidavit.errors import AffidavitError, AffidavitUnavailable
from affidavit.evidence.text import printable

CALL: Final = timedelta(seconds=10)
VISIBLE_S: Final = 60.0
PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0

_TYPES: Final[Mapping[ValueType, IndexedValueType.ValueType]] = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
}


class RegistrationRefused(AffidavitError):
    """The search attributes cannot be registered; the message says what somebody has to do first."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What a namespace has of our search attributes: names by how they are there.

    `wrong` holds, for each name under another type, what it is and what it should be.
    """

    right: tuple[str, ...]
    missing: tuple[str, ...]
    wrong: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether all are there, each under its type."""
        return not self.missing and not self.wrong


async def registered(client: Client) -> Registered:
    """Ask which of our search attributes the client's namespace has.

    Raises:
        RPCError: as the server answered; the right to list them may be missing.
    """
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=CALL
    )
    there = answer.custom_attributes
    return Registered(
        right=tuple(name for name, type_ in SEARCH_ATTRIBUTES.items() if there.get(name) == _TYPES[type_]),
        missing=tuple(name for name in SEARCH_ATTRIBUTES if name not in there),
        wrong={
            name: f"{_called(there[name])}, not {type_}"
            for name, type_ in SEARCH_ATTRIBUTES.items()
            if name in there and there[name] != _TYPES[type_]
        },
    )


async def register(client: Client, *, within: float = VISIBLE_S) -> tuple[str, ...]:
    """Register what is missing and wait until all of it can be used; nothing that is there is changed.

    Args:
        within: seconds to wait for what was registered to become visible.

    Returns:
        The names that were missing; none where there was nothing to do.

    Raises:
        RegistrationRefused: an attribute is there under another type, the server refuses, or nothing becomes visible.
        AffidavitUnavailable: the server does not answer.
    """
    try:
        async with asyncio.timeout(within):
            return await _register(client)
    except TimeoutError:
        raise RegistrationRefused(
            f"the search attributes are registered, but not visible after {within:g} s; run `affidavit setup` again"
        ) from None
    except RPCError as error:
        raise _explained(client.namespace, error) from error


async def _register(client: Client) -> tuple[str, ...]:
    before = await registered(client)
    _check_types(before)
    if before.missing:
        await _add(client, before.missing)
    pause = PAUSE_S
    while not ((now := await registered(client)).complete and await _queried(client)):
        # Another who registers at the same time may do it under another type; the server does not say so to either.
        _check_types(now)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return before.missing


async def _add(client: Client, names: tuple[str, ...]) -> None:
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={name: _TYPES[SEARCH_ATTRIBUTES[name]] for name in names}
    )
    try:
        await client.operator_service.add_search_attributes(request, timeout=CALL)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # somebody else was as quick
            raise


async def _queried(client: Client) -> bool:
    """Whether a search knows them: lists and searches are answered from caches of their own."""
    query = " AND ".join(f"{name} IS NULL" for name in SEARCH_ATTRIBUTES)
    try:
        await client.workflow_service.count_workflow_executions(
            CountWorkflowExecutionsRequest(namespace=client.namespace, query=query), timeout=CALL
        )
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return False
        raise
    return True


def _check_types(found: Registered) -> None:
    if found.wrong:
        what = "; ".join(f"{name} is {how}" for name, how in found.wrong.items())
        raise RegistrationRefused(
            f"search attributes are registered under another type: {what}. Remove them (`temporal operator "
            "search-attribute remove --name …`) where nobody else uses them, or use another namespace"
        )


def _explained(namespace: str, error: RPCError) -> AffidavitError:
    said = printable(error.message, 200)
    if error.status is RPCStatusCode.PERMISSION_DENIED or error.status is RPCStatusCode.UNAUTHENTICATED:
        names = ", ".join(f"{name}={type_}" for name, type_ in SEARCH_ATTRIBUTES.items())
        return RegistrationRefused(
            f"no right to register search attributes in namespace {printable(namespace)} ({said}); "
            f"whoever has it registers {names}"
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        return AffidavitUnavailable(f"namespace {printable(namespace)} is not found on the Temporal server")
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return AffidavitUnavailable(f"the Temporal server does not answer: {said}")
    return RegistrationRefused(f"the Temporal server does not register the search attributes: {said}")


def _called(type_: IndexedValueType.ValueType) -> str:
    word = IndexedValueType.Name(type_).removeprefix("INDEXED_VALUE_TYPE_")
    return "".join(part.capitalize() for part in word.split("_"))
