"""Arguments of messages, checked before they leave."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError
from temporalio.common import RawValue

from affidavit import contract
from affidavit.converter import encode_json, raw_json
from affidavit.errors import SessionRefused
from affidavit.validation import first_error


def as_argument(model: type[BaseModel], **fields: Any) -> RawValue:
    """The argument of a message; what is None is left out.

    Raises:
        SessionRefused: it is none that the session would take.
    """
    try:
        request = model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise SessionRefused(contract.REFUSED_BAD_REQUEST, first_error(error)) from None
    return raw_json(encode_json(request.model_dump(mode="json", exclude_none=True)))
