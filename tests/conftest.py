"""Shared fixtures. The dev server is real, in memory, on a free loopback port, and ends with the session."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from temporalio.client import Client

from affidavit.registering import register
from tests.support.failed_tasks import FailedTasks, forward_core_logs
from tests.support.rig import Rig
from workers.devserver import DevServer

TEST_LIMIT_S = 90.0
CLEAN_UP_S = 20.0
"""What a test with a `timeout` marker of its own keeps for its fixtures."""

# A slow machine makes no property false: examples may take their time, and a test as a whole has its limit. The rest is
# as in the profile that is loaded already, hypothesis's own `ci` where CI is set; and what a test sets itself is kept.
settings.register_profile("affidavit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("affidavit")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "failed_tasks: the test makes workflow tasks fail on purpose")
    config.addinivalue_line("markers", "crowded: so many sessions at once that a task may wait 2 s for its turn")
    forward_core_logs()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts what it runs in the background; processes that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every asynchronous test a limit, so that one which waits for ever fails, and cleans up after itself."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            marker = item.get_closest_marker("timeout")
            item.obj = _limited(item.obj, TEST_LIMIT_S if marker is None else float(marker.args[0]) - CLEAN_UP_S)


def _limited(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(limit_s):
            await test(*args, **kwargs)

    return limited


@pytest.fixture(autouse=True)
def no_failed_tasks(request: pytest.FixtureRequest) -> Iterator[FailedTasks]:
    """Fail a test in which a workflow task failed, unless it is marked `failed_tasks`."""
    watch = FailedTasks()
    logger = logging.getLogger("temporalio")
    logger.addHandler(watch)
    try:
        yield watch
    finally:
        logger.removeHandler(watch)
    if request.node.get_closest_marker("crowded") is not None:
        watch.forget_slow()
    if request.node.get_closest_marker("failed_tasks") is None:
        assert watch.seen == []


@pytest_asyncio.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    started = await DevServer.start(log=tmp_path_factory.mktemp("server") / "server.log", headless=True)
    try:
        await register(await Client.connect(started.address, namespace=started.namespace))
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture
async def rig(server: DevServer, tmp_path: Path) -> Rig:
    """A product without a running worker: enter `rig.worker()`."""
    return await Rig.make(server.address, tmp_path / "data")


@pytest_asyncio.fixture
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """A product with a worker."""
    async with rig.worker():
        yield rig
