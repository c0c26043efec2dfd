"""The one data converter, shared by clients and workers; and JSON as steps need it."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter, DefaultFailureConverter, DefaultFailureConverterWithEncodedAttributes

from affidavit.codec import EncryptionCodec
from affidavit.offloading import INLINE, OffloadingPayloadConverter, offloading_converter
from affidavit.stores.base import EvidenceStore

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def data_converter(store: EvidenceStore | None = None, codec: EncryptionCodec | None = None) -> DataConverter:
    """The converter that both sides of the wire use.

    Args:
        store: the evidence store that takes payloads over 256 KiB out of the history. A worker must have one; a client
            shares its workers', or does without and reports nothing that is larger than Temporal takes.
        codec: encrypts payloads, and the messages and stack traces of failures; by default nothing is encrypted.
            Clients and workers need the same keys (`affidavit.codec_keys.codec_from_environment`).
    """
    # A codec without keys all the same: what others have encrypted is then told from what is no message at all.
    codec = codec or EncryptionCodec()
    if store is None:
        converter = DataConverter(payload_converter_class=OffloadingPayloadConverter)
    else:
        converter = offloading_converter(store)
    failures = DefaultFailureConverterWithEncodedAttributes if codec.encrypts else DefaultFailureConverter
    return dataclasses.replace(converter, payload_codec=codec, failure_converter_class=failures)


def encode_json(value: Any) -> bytes:
    """JSON text of a reported value as UTF-8: whatever Python's JSON can hold, lone surrogates escaped.

    Raises:
        TypeError: a value that is no JSON.
        ValueError: a value that contains itself.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Inside a JSON string an escape means the same, and UTF-8 has no form for half a pair.
        return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).encode("utf-8")


def raw_json(data: bytes) -> RawValue:
    """JSON text as an argument that goes over the wire as it is."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


def inline_json(data: bytes) -> RawValue:
    """The same for an answer that must not go to the store: whoever asked need not share it. At most 2 MB."""
    return RawValue(Payload(metadata={"encoding": b"json/plain", INLINE: b"true"}, data=data))
