"""Clients and workers with codec keys, on one product instance."""

from __future__ import annotations

from temporalio.client import Client

from affidavit.client import SessionClient
from affidavit.codec import EncryptionCodec
from affidavit.converter import data_converter
from affidavit.stores.local import DirectoryStore
from tests.support.rig import Rig

KEY_A = bytes(range(32))
KEY_B = bytes(range(1, 33))
KEY_C = bytes(range(2, 34))
ID_A = "3e9cd380a6ffffed"
ID_B = "b8699f51f887951c"
ID_C = "90bd80e49be0a0dc"


def with_keys(rig: Rig, *keys: bytes) -> Rig:
    """The same instance, seen by a client (and run by workers) with these codec keys."""
    store = DirectoryStore(rig.data.evidence)
    config = rig.client.temporal.config()
    config["data_converter"] = data_converter(store, EncryptionCodec(keys))
    client = SessionClient(Client(**config), task_queue=rig.settings.task_queue, admit_timeout=20, store=store)
    return Rig(client, rig.data, rig.settings)
