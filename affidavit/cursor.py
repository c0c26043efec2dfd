"""Which messages of a model request have not been reported before (pure).

A runtime sends its whole conversation with each request; a session wants each message once (formats.md 2). The cursor
compares each list with those it has seen, by a digest of each message, and reports what the list adds. Several
conversations may share a session, as those of sub-agents do: a list is held against the one it continues.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from affidavit.evidence.canonical import CanonicalError, digest

Message = dict[str, Any]

THREADS: Final = 64
"""Conversations that are remembered; the one that was quiet for longest is forgotten, and then reported anew."""


@dataclass(slots=True)
class _Thread:
    """A conversation as far as it was sent: digests of its messages, and answers whose echo is still to come."""

    keys: list[bytes] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)


class MessageCursor:
    """The place up to which a session's conversations are reported. Not for several threads at once."""

    def __init__(self) -> None:
        self._threads: OrderedDict[int, _Thread] = OrderedDict()
        self._next = 0
        self._tools: str | None = None

    def take(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], int]:
        """The messages to report, and the conversation that they belong to; they are taken as reported from now on.

        A message that the list's conversation has had, but at another place because the runtime has shortened it, is
        given again with `copied: true`. So is an assistant's message that nobody has reported as an answer. The echo
        of an answer that was reported is left out.
        """
        keys = [_key(message) for message in messages]
        number, common = self._continued(keys)
        thread = self._threads[number]
        had = Counter(thread.keys[common:])
        if had and not had.keys() & set(keys[common:]):
            # Nothing of the rest comes back: another conversation with the same beginning, a system prompt say.
            number, thread = self._new(keys[:common])
            had.clear()
        fresh: list[Message] = []
        for key, message in zip(keys[common:], messages[common:], strict=True):
            answer = message.get("role") == "assistant"
            if answer and _echoed(thread.answers, message):
                continue
            again = had[key] > 0
            had[key] -= again
            fresh.append({**message, "copied": True} if again or answer else dict(message))
        thread.keys = keys
        self._threads.move_to_end(number)
        while len(self._threads) > THREADS:
            self._threads.popitem(last=False)
        return fresh, number

    def answered(self, number: int, text: str | None, calls: Sequence[Mapping[str, Any]] = ()) -> None:
        """An answer of that conversation was reported; its echo in the next list is not news."""
        thread = self._threads.get(number)
        if thread is not None:
            thread.answers.append({"content": text or "", "tool_calls": list(calls)})
            del thread.answers[:-THREADS]

    def new_tools(self, tools: Sequence[Any] | None) -> list[Any] | None:
        """The tools offered to a model, where they are not those of the last request; else None."""
        if not tools:
            return None
        key = _key({"tools": list(tools)}).hex()
        if key == self._tools:
            return None
        self._tools = key
        return list(tools)

    def _continued(self, keys: list[bytes]) -> tuple[int, int]:
        """The conversation that a list continues, and how much of it they share; a new one if they share nothing."""
        best, rank = -1, (0, False)
        for number, thread in self._threads.items():
            common = _common(thread.keys, keys)
            # Rather one that goes on whole than one that is cut; of equals the latest.
            if common and (common, common == len(thread.keys)) >= rank:
                best, rank = number, (common, common == len(thread.keys))
        return (best, rank[0]) if rank[0] else (self._new([])[0], 0)

    def _new(self, keys: list[bytes]) -> tuple[int, _Thread]:
        self._next += 1
        thread = self._threads[self._next] = _Thread(keys)
        return self._next, thread


def _common(ours: list[bytes], theirs: list[bytes]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def context_sha256(sent: Any) -> str | None:
    """The digest of a whole message list as it was sent: SHA-256 of its canonical JSON; None where it has none."""
    try:
        return digest(sent)
    except CanonicalError:
        return None


def _key(message: Mapping[str, Any]) -> bytes:
    # Not evidence, only a comparison: whatever JSON can write at all has a key.
    text = json.dumps(message, sort_keys=True, default=repr, separators=(",", ":"))
    return sha256(text.encode()).digest()


def _echoed(answers: list[Message], message: Mapping[str, Any]) -> bool:
    """Whether a message repeats an answer that was reported; that one is then done with."""
    found = next((answer for answer in answers if _same_answer(answer, message)), None)
    if found is not None:
        answers.remove(found)
    return found is not None


def _same_answer(answer: Message, message: Mapping[str, Any]) -> bool:
    """Runtimes drop or rewrite fields of an answer; its call ids, or else its text, they keep."""
    ours = [call.get("call_id") for call in answer["tool_calls"]]
    theirs = [call.get("call_id") for call in message.get("tool_calls") or ()]
    if ours or theirs:
        return ours == theirs
    return _text(answer["content"]) == _text(message.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping)).strip()
    return str(content or "").strip()
