"""The hash embedder (formats.md 8): texts to integer vectors, with no model and no network.

A text becomes 512 signed counts of hashed character 3-, 4- and 5-grams. Two texts that say the same thing in
slightly other words share most grams, which is all the loop breaker needs. Counts stay integers until the
last step of a cosine, so every machine gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from affidavit.evidence.text import WHITE_SPACE

__all__ = ["Counts", "HashEmbedder", "normalise", "similarities", "similarity", "unit_vector"]

Counts: TypeAlias = NDArray[np.int32]

_GRAMS = (3, 4, 5)
_EDGE = 8_192
"""Code points kept at each end of a long text."""

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_BUCKET, _TOP, _SIGN = np.uint64(511), np.uint64(63), np.uint64(9)
_OTHER_WHITE = "".join(sorted(WHITE_SPACE - {" "}))


def normalise(text: str) -> str:
    """Fold `text` to the form whose grams are counted (formats.md 8). It is not cut here.

    Lower case, code point by code point; a run of Unicode White_Space becomes one space; no space leads.
    """
    # Capital sigma is the only code point whose lower case depends on its neighbours, so with it out of the way
    # `str.lower` on the whole text is the code-point-wise mapping, at C speed.
    folded = text.replace("\u03a3", "\u03c3").lower()
    # Whole-text replacements cost less than a regular expression: most of them find nothing, and runs halve.
    for white in _OTHER_WHITE:
        folded = folded.replace(white, " ")
    while "  " in folded:
        folded = folded.replace("  ", " ")
    return folded.removeprefix(" ")


class HashEmbedder:
    """Counts of FNV-1a-64 hashed grams in `dim` buckets; stateless, safe on any number of threads."""

    dim = 512

    def counts(self, text: str) -> Counts:
        """The integer vector of `text`: `dim` int32 counts, each gram adding +1 or -1 to its bucket.

        Of a *normalised* text longer than 16 384 code points only the first and the last 8 192 are read,
        joined: the rule follows normalisation in formats.md 8, and padding must not push content out of the
        window. A text shorter than n is hashed whole once per n, the empty one too. A lone surrogate is
        hashed as the three bytes UTF-8 would give it were it allowed (`surrogatepass`), so that broken text
        has a vector like any other.
        """
        kept = normalise(text)
        if len(kept) > 2 * _EDGE:
            kept = kept[:_EDGE] + kept[-_EDGE:]
        hashes = _gram_hashes(kept)
        # The sign bit moves next to the bucket number: one unweighted count answers both.
        slots = (hashes & _BUCKET) | ((hashes >> _TOP) << _SIGN)
        tally = np.bincount(slots.view(np.int64), minlength=2 * self.dim)
        return (tally[: self.dim] - tally[self.dim :]).astype(np.int32)


def _gram_hashes(text: str) -> NDArray[np.uint64]:
    """FNV-1a-64 of every gram of `text`, all lengths in one array.

    The hash of a longer gram continues the hash of its prefix, so one pass of five code points serves all
    lengths. `planes[j]` holds byte j of each code point's UTF-8; a code point with fewer bytes leaves the
    hash as it is.
    """
    size = len(text)
    planes: list[tuple[NDArray[np.uint64], NDArray[np.bool_] | None]]
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    if len(data) == size:
        planes = [(data.astype(np.uint64), None)]
    else:
        starts = np.flatnonzero((data & 0xC0) != 0x80)
        widths = np.diff(starts, append=len(data))
        padded = np.append(data, np.zeros(3, dtype=np.uint8)).astype(np.uint64)
        planes = [(padded[starts + j], widths > j if j else None) for j in range(int(widths.max()))]

    # A text shorter than n is one gram of its own length: the pass stops at its end, and that hash serves each n.
    wanted: list[NDArray[np.uint64]] = []
    hashes = np.full(1 if size < _GRAMS[0] else size, _FNV_OFFSET)
    for length in range(1, _GRAMS[-1] + 1):
        if length <= size:
            count = size - length + 1 if size >= _GRAMS[0] else 1
            hashes = hashes[:count]
            at = slice(length - 1, length - 1 + count)
            for plane, present in planes:
                mixed = (hashes ^ plane[at]) * _FNV_PRIME
                hashes = mixed if present is None else np.where(present[at], mixed, hashes)
        if length in _GRAMS:
            wanted.append(hashes)
    return np.concatenate(wanted)


def similarity(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Cosine of two integer vectors: exact sums, one float64 division, rounded once to float32, in [-1, 1].

    A vector of zeros has no direction; its cosine with anything is 0. The result is the float32 widened.
    """
    return similarities(a, [b])[0]


def similarities(counts: NDArray[Any], others: Sequence[NDArray[Any]]) -> list[float]:
    """`similarity` to each of several vectors, in order; together they take little longer than one."""
    if not others:
        return []
    own, wide = counts.astype(np.int64), np.stack(others).astype(np.int64)
    square = int(own @ own)
    products, squares = (wide @ own).tolist(), np.einsum("ij,ij->i", wide, wide).tolist()
    return [_cosine(product, square * other) for product, other in zip(products, squares, strict=True)]


def _cosine(product: int, squares: int) -> float:
    if squares == 0:
        return 0.0
    return max(-1.0, min(1.0, float(np.float32(product / math.sqrt(squares)))))


def unit_vector(counts: Counts) -> NDArray[np.float32]:
    """The published form of a vector: counts and norm each rounded to float32, then divided; zeros stay zeros."""
    wide = counts.astype(np.int64)
    norm = np.float32(math.sqrt(int(wide @ wide)))
    single: NDArray[np.float32] = counts.astype(np.float32)
    return single / norm if norm else single
