"""Signs a receipt once: what stands in the store is never signed anew, and never replaced."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from activities.errors import IntegrityError
from activities.sealed import Life
from affidavit.evidence.errors import EvidenceError
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.layout import RECEIPT, receipt_name
from affidavit.evidence.receipt import SIGNER_FIELDS, issue, parse, to_bytes, verify
from affidavit.evidence.scalars import sha256_hex
from affidavit.stores.base import EvidenceStore, ObjectExists, ObjectMissing


class Receipts:
    """The receipts of one signer in one store. `keyring` holds the keys under which one may have been signed."""

    def __init__(self, store: EvidenceStore, signer: Signer, keyring: Keyring) -> None:
        self._store = store
        self._signer = signer
        self._keyring = keyring

    def issue(self, life: Life, body: Mapping[str, Any], *, free: Collection[str] = ()) -> tuple[dict[str, Any], str]:
        """The receipt of a life: signed and stored now, or the one that stands there if it says the same.

        Args:
            body: what to sign.
            free: fields in which one that stands may differ.

        Returns:
            The receipt, and the SHA-256 of its stored bytes.

        Raises:
            IntegrityError: another receipt stands there, or one that no key of the ring has signed.
        """
        receipt = issue(body, self._signer)
        data = to_bytes(receipt)
        try:
            self._store.create(receipt_name(life.session_id, life.generation), data)
        except ObjectExists:
            # An earlier attempt may have signed it with a key that has been rotated out since.
            standing, digest = self.standing(life)
            left = SIGNER_FIELDS.union(free)
            if _without(standing, left) != _without(receipt, left):
                raise IntegrityError(f"{RECEIPT} is another receipt") from None
            return standing, digest
        return receipt, sha256_hex(data)

    def standing(self, life: Life) -> tuple[dict[str, Any], str]:
        """The receipt that stands in the store, as `issue` returns it.

        Raises:
            IntegrityError: there is none, or it is not to be trusted.
        """
        try:
            data = self._store.read(receipt_name(life.session_id, life.generation))
        except ObjectMissing:
            raise IntegrityError(f"{RECEIPT} is not in the evidence store") from None
        try:
            return verify(parse(data), self._keyring).receipt.document(), sha256_hex(data)
        except EvidenceError as error:
            raise IntegrityError(f"{RECEIPT}: {error}") from error


def _without(receipt: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in receipt.items() if name not in names}
