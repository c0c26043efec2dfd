"""A TCP proxy before the dev server, to lose what a network loses: connections, and answers to what was taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from workers.devserver import LOOPBACK


@dataclass
class Proxy:
    """Passes bytes on, as its switches say.

    `mute`: the server hears the client, its answers are dropped. `closed`: nobody gets a connection.
    """

    host: str
    port: int
    address: str = ""
    mute: bool = False
    closed: bool = False
    cuts: int = 0
    _passed: asyncio.Event = field(default_factory=asyncio.Event)
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)

    async def passes(self, pieces: int) -> None:
        """Wait until so many pieces of the server's answers have come through."""
        for _ in range(pieces):
            self._passed.clear()
            await self._passed.wait()

    def cut(self) -> None:
        """Break every connection there is, without a goodbye."""
        self.cuts += 1
        for writer in self._connections:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_connection(self.host, self.port)
        both = {writer, up_writer}
        self._connections |= both
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, up_writer, answers=False))
                group.create_task(self._pass_on(up_reader, writer, answers=True))
        except* OSError:
            pass
        finally:
            self._connections -= both
            for end in both:
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(65_536):
            if not (answers and self.mute):
                writer.write(data)
                await writer.drain()
                if answers:
                    self._passed.set()
        raise ConnectionResetError


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[Proxy]:
    """A proxy before a server; `proxy.address` is where clients go."""
    host, _, port = address.rpartition(":")
    proxy = Proxy(host, int(port))
    serving: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await proxy.serve(reader, writer)
        finally:
            serving.discard(task)

    server = await asyncio.start_server(accept, LOOPBACK, 0)
    proxy.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await asyncio.gather(*serving, return_exceptions=True)
