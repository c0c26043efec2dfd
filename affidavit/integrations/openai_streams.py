"""Streams of OpenAI's client that report their call once, whether they are read to the end, closed, dropped or cut."""

from __future__ import annotations

import functools
from typing import Any, Protocol, Self

from affidavit.integrations.openai_shapes import Fields
from affidavit.modelcalls import ModelCall


class CutOff(Exception):
    """A stream that ended before the answer did."""


class Parts(Protocol):
    """What has come of an answer so far; `text` are the pieces of its text."""

    text: list[str]

    def add(self, chunk: Any) -> None:
        """Take the next chunk."""
        ...

    def answer(self) -> Fields | None:
        """What it says, or None while it has not come to its end."""
        ...


class _Watched:
    """What both kinds of stream share: the record of the call, made once."""

    def __init__(self, stream: Any, call: ModelCall, parts: Parts, hide_usage: bool) -> None:
        self._stream = stream
        self._call = call
        self._parts = parts
        self._hide_usage = hide_usage
        call.when_collected(self, functools.partial(_dropped, call, parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _add(self, chunk: Any) -> bool:
        """Take a chunk; whether the caller sees it."""
        self._parts.add(chunk)
        return not (self._hide_usage and getattr(chunk, "usage", None) and not chunk.choices)

    def _ended(self) -> None:
        answer = self._parts.answer()
        if answer is None:
            self._fail(CutOff("the stream ended before the answer did"))
        else:
            self._call.respond(**answer)

    def _fail(self, error: BaseException) -> None:
        self._call.fail(error, partial="".join(self._parts.text))

    def _drop(self) -> None:
        _dropped(self._call, self._parts)


def _dropped(call: ModelCall, parts: Parts) -> None:
    """Report a call whose stream nobody reads on; does nothing where it was read to its end."""
    answer = parts.answer()
    if answer is None:
        call.fail(partial="".join(parts.text))
    else:  # only what comes behind the answer was left, usage at most
        call.respond(**answer)


class SyncStream(_Watched):
    """A stream of the synchronous client."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            while not self._add(chunk := next(self._stream)):
                pass
        except StopIteration:
            self._ended()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        return chunk

    def close(self) -> None:
        self._drop()
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Watched):
    """A stream of the asynchronous client."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            while not self._add(chunk := await anext(self._stream)):
                pass
        except StopAsyncIteration:
            self._ended()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        return chunk

    async def close(self) -> None:
        self._drop()
        await self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
