"""The health check of a worker: it is healthy while it asks Temporal for the work of its roles."""

from __future__ import annotations

import socket

from tests.support.rig import Rig
from tests.support.waiting import eventually
from workers.health import missing


async def test_a_worker_is_healthy_while_it_polls_the_queues_of_its_roles(running: Rig) -> None:
    queue = running.settings.task_queue

    async def lacking(roles: tuple[str, ...] = ("session", "signing"), host: str | None = None) -> list[str]:
        settings = running.settings.model_copy(update={"roles": roles})
        return await missing(settings, host or socket.gethostname(), running.client.temporal)

    assert await eventually(lacking, lambda found: found == []) == []
    assert await lacking(host="another-host") == [queue, f"{queue}-signing"]
    assert await lacking(("signing",), host="another-host") == [f"{queue}-signing"]


async def test_without_a_worker_its_queues_are_named(rig: Rig) -> None:
    queue = rig.settings.task_queue
    found = await missing(rig.settings, socket.gethostname(), rig.client.temporal)
    assert found == [queue, f"{queue}-signing"]
