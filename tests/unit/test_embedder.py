"""The hash embedder against golden values and against the formula of formats.md 8 written out slowly."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.embedders import HashEmbedder, normalise, similarity, unit_vector

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text("utf-8"))
EMBEDDER = HashEmbedder()

# PropList.txt, White_Space; written out here so that the product's own table is tested too.
WHITE = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def slow_normalise(text: str) -> str:
    out = ""
    for character in text:
        for low in character.lower():  # one code point at a time, so no rule looks at the neighbours
            if ord(low) not in WHITE:
                out += low
            elif out and out[-1] != " ":
                out += " "
    return out


def slow_fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def slow_counts(text: str) -> list[int]:
    points = slow_normalise(text)
    if len(points) > 16_384:
        points = points[:8_192] + points[-8_192:]
    counts = [0] * 512
    for n in (3, 4, 5):
        grams = [points[i : i + n] for i in range(len(points) - n + 1)] or [points]
        for gram in grams:
            hashed = slow_fnv(gram.encode("utf-8", "surrogatepass"))
            counts[hashed % 512] += -1 if hashed >> 63 else 1
    return counts


@pytest.mark.parametrize(("text", "hexadecimal"), VECTORS["fnv1a64"].items())
def test_reference_hash_is_fnv1a(text: str, hexadecimal: str) -> None:
    assert f"{slow_fnv(text.encode()):016x}" == hexadecimal


@pytest.mark.parametrize("golden", VECTORS["hash_embedder"], ids=lambda golden: golden["text"][:16])
def test_golden_vectors(golden: dict[str, Any]) -> None:
    counts = EMBEDDER.counts(golden["text"])
    buckets = [[int(i), int(counts[i])] for i in np.flatnonzero(counts)]

    assert normalise(golden["text"]) == golden["normalised"]
    assert EMBEDDER.dim == len(counts) == golden["dim"]
    assert counts.dtype == np.int32
    assert len(buckets) == golden["nonzero_buckets"]
    assert buckets[: len(golden["first_nonzero"])] == golden["first_nonzero"]
    assert int((counts.astype(np.int64) ** 2).sum()) == golden["sum_of_squares"]
    assert hashlib.sha256(counts.astype("<i4").tobytes()).hexdigest() == golden["sha256_counts_i32le"]
    unit = unit_vector(counts)
    assert unit.dtype == np.float32
    assert hashlib.sha256(unit.astype("<f4").tobytes()).hexdigest() == golden["sha256_vector_f32le"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \t\n ", ""),
        ("  A\r\n\tB  ", "a b "),
        ("end", "end"),
        ("end\u3000", "end "),
        ("a\u0085\u00a0\u1680\u2028\u205fb", "a b"),
        ("a\x1cb\x1f", "a\x1cb\x1f"),  # str.isspace says yes, Unicode says no
        ("a\u200bb", "a\u200bb"),  # zero width space is no White_Space
        ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c3"),  # no final sigma
        ("\u0130X", "i\u0307x"),  # a lower case of two code points
        ("\ud83d", "\ud83d"),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalise(text) == expected


_CHARACTERS = st.one_of(
    st.characters(codec="ascii"),
    st.characters(),
    st.sampled_from("Σςσ İIß\t\u0085\u2003\u3000\x1c é漢😀\ud83d\udc00\x00"),
)


@given(st.text(_CHARACTERS, max_size=80))
@settings(max_examples=400, deadline=None)
def test_counts_follow_the_formula(text: str) -> None:
    assert normalise(text) == slow_normalise(text)
    assert EMBEDDER.counts(text).tolist() == slow_counts(text)


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 16_390, 40_000])
def test_only_both_ends_of_a_long_text_count(length: int) -> None:
    text = "".join(chr(97 + (i * i // 7 + i) % 26) if i % 11 else "é" for i in range(length))
    assert EMBEDDER.counts(text).tolist() == slow_counts(text)


def test_the_cut_is_made_after_normalisation() -> None:
    head, tail = "alpha beta " * 744 + "abcdefgh", "gamma delta " * 682 + "12345678"
    assert len(head) == len(tail) == 8_192
    padded = head + " " * 50_000 + tail
    assert EMBEDDER.counts(padded).tolist() == EMBEDDER.counts(head + " " + tail).tolist()
    # What lies between the two ends is not read at all.
    assert EMBEDDER.counts(head + "x" * 9_000 + tail).tolist() == EMBEDDER.counts(head + "yz" + tail).tolist()


def test_lone_surrogates_have_a_vector() -> None:
    assert EMBEDDER.counts("\ud83d").tolist() == slow_counts("\ud83d")
    assert EMBEDDER.counts("half \ud83d emoji").tolist() != EMBEDDER.counts("half \ude00 emoji").tolist()


def test_the_empty_text_is_hashed_once_per_length() -> None:
    # FNV of nothing is its offset, cbf29ce484222325: bit 63 is set, and 0x325 mod 512 is 293.
    counts = EMBEDDER.counts("")
    assert counts[293] == -3
    assert np.count_nonzero(counts) == 1


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 0], [1, 0], 1.0),
        ([3, 0], [5, 0], 1.0),
        ([1, 0], [0, 1], 0.0),
        ([1, 2], [-1, -2], -1.0),
        ([0, 0], [1, 1], 0.0),
        # 1/sqrt(2) as float32 is 0x3f3504f3
        ([1, 0], [1, 1], 0.7071067690849304),
        # 24/25 as float32 is 0x3f75c28f
        ([3, 4], [4, 3], 0.9599999785423279),
    ],
)
def test_similarity(a: list[int], b: list[int], expected: float) -> None:
    result = similarity(np.array(a, dtype=np.int32), np.array(b, dtype=np.int32))
    assert type(result) is float
    assert result == expected


def test_similarity_does_not_overflow_32_bits() -> None:
    big = np.full(512, 49_152, dtype=np.int32)
    assert similarity(big, big) == 1.0
    assert math.isclose(similarity(big, -big), -1.0)


def test_unit_vector_of_zeros_is_zeros() -> None:
    assert unit_vector(np.zeros(4, dtype=np.int32)).tolist() == [0.0, 0.0, 0.0, 0.0]
