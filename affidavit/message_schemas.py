"""JSON Schemas of what crosses the wire beside the steps themselves: carriers, requests and answers.

For runtimes in other languages; `affidavit schema` prints them. The names are those of the signals and updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from affidavit import contract
from affidavit.fields import WireSchema
from affidavit.steps import STEP

_REQUESTS: dict[str, type[BaseModel]] = {
    contract.UPDATE_ADMIT: contract.AdmitRequest,
    contract.UPDATE_REFRESH_IDENTITY: contract.Agent,
    contract.UPDATE_RESET_BREAKER: contract.BreakerReset,
    contract.UPDATE_CLOSE: contract.CloseRequest,
}
_ANSWERS: dict[str, type[BaseModel]] = {
    contract.UPDATE_ATTACH: contract.AttachResult,
    contract.UPDATE_ADMIT: contract.AdmitResult,
    contract.UPDATE_SUBMIT: contract.SubmitResult,
    contract.UPDATE_FLUSH: contract.FlushResult,
    contract.UPDATE_REFRESH_IDENTITY: contract.IdentityResult,
    contract.UPDATE_RESET_BREAKER: contract.FlushResult,
    contract.UPDATE_CLOSE: contract.CloseAccepted,
    contract.QUERY_VIEW: contract.SessionView,
    contract.QUERY_TERMINAL_STATE: contract.TerminalState,
}


def message_schemas() -> dict[str, Callable[[], dict[str, Any]]]:
    """What makes the schema of each message: of a signal or an update by its name, of its answer as `<name>-answer`.

    `outcome` is the workflow's result. `attach` takes a `session-spec`, `submit` takes what `record` takes, and `flush`
    takes nothing.
    """

    def of(model: type[BaseModel]) -> Callable[[], dict[str, Any]]:
        return lambda: model.model_json_schema(schema_generator=WireSchema)

    return {
        contract.SIGNAL_RECORD: _record,
        **{name: of(model) for name, model in _REQUESTS.items()},
        **{f"{name}-answer": of(model) for name, model in _ANSWERS.items()},
        "outcome": of(contract.SessionOutcome),
    }


def _record() -> dict[str, Any]:
    step = STEP.json_schema(schema_generator=WireSchema)
    definitions = step.pop("$defs", {})
    steps = {"type": "array", "minItems": 1, "maxItems": contract.RECORD_STEPS, "items": step}
    return {
        "title": "Record",
        "description": "Steps on their way to a session; the argument of `record` and of `submit`.",
        "type": "object",
        "properties": {"steps": steps},
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": definitions,
    }
