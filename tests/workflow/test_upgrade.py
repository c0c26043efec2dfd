"""An upgrade of the worker in the middle of a session: pinned to its build, then handed on to the next one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import RoutingConfigUpdateState
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.service import RPCError

from affidavit.client import SessionHandle
from tests.support.oracle import attested
from tests.support.processes import environment, process
from tests.support.rig import Rig, actions
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from workers.devserver import DevServer

CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}


async def make_current(rig: Rig, deployment: str, build: str) -> None:
    """What an operator does with `temporal worker deployment set-current-version`, once the build polls."""
    temporal = rig.client.temporal
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=temporal.namespace, deployment_name=deployment, build_id=build, identity="operator"
    )

    async def set_current() -> bool:
        try:
            await temporal.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:  # the server has not heard of the build yet
            return False
        return True

    await eventually(set_current, bool, within=LIMIT_S)
    wanted = DescribeWorkerDeploymentRequest(namespace=temporal.namespace, deployment_name=deployment)

    async def current() -> tuple[str, RoutingConfigUpdateState.ValueType]:
        described = (await temporal.workflow_service.describe_worker_deployment(wanted)).worker_deployment_info
        return described.routing_config.current_deployment_version.build_id, described.routing_config_update_state

    # The deployment says it at once; its task queues, which tell the sessions, hear of it up to seconds later.
    spread = RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_COMPLETED
    await eventually(current, lambda found: found == (build, spread), within=LIMIT_S)


async def build_of(rig: Rig, session: SessionHandle) -> tuple[str, str]:
    """Versioning behavior and build of the session's current run, in Temporal's words."""
    described = await rig.client.temporal.get_workflow_handle(session.session_id).describe()
    info = described.raw_description.workflow_execution_info.versioning_info
    return str(info.behavior), info.deployment_version.build_id


@asynccontextmanager
async def product(rig: Rig, address: str, deployment: str, version: str, log: Path) -> AsyncIterator[None]:
    """A worker process of a product version: its own code, its own number."""
    env = environment(rig, address, AFFIDAVIT_DEPLOYMENT=deployment, PRODUCT_VERSION=version)
    async with process(("-m", "tests.support.other_version"), env, log) as running:
        yield
        running.terminate()
        await asyncio.wait_for(running.wait(), LIMIT_S)


async def test_a_worker_is_upgraded_in_the_middle_of_a_session(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    """Two product versions as two processes; one session, one chain, one valid receipt."""
    deployment = f"affidavit-{uuid.uuid4()}"
    async with AsyncExitStack() as old, product(rig, server.address, deployment, "0.2.0", tmp_path / "new"):
        await old.enter_async_context(product(rig, server.address, deployment, "0.1.0", tmp_path / "old"))
        await make_current(rig, deployment, "0.1.0")
        session = await rig.open(content="store")
        await session.submit(CALL)
        assert await build_of(rig, session) == ("1", "0.1.0")  # pinned
        await make_current(rig, deployment, "0.2.0")
        # The old build notices with its next task, and hands the session on.
        await session.submit(CALL)
        await eventually(session.view, lambda view: view.runs == 2, within=LIMIT_S)
        await session.submit(CALL)
        assert await build_of(rig, session) == ("1", "0.2.0")
        await old.aclose()  # drained: nothing needs the old build any more
        await session.submit(CALL)
        outcome = await session.close()
        assert (await session.view()).runs == 2
    events = attested(rig, outcome)
    assert actions(events) == ["opened"] + ["tool_call"] * 4
    # The version that opened a session speaks for all of it: a chain must not depend on who wrote a part of it.
    assert {event["metadata"]["product"]["version"] for event in events} == {"0.1.0"}


async def test_a_session_that_nobody_upgrades_stays_where_it_is(rig: Rig) -> None:
    """No worker versioning, no rollover."""
    async with rig.worker():
        session = await rig.open()
        await session.submit(CALL)
        assert await build_of(rig, session) == ("0", "")
        assert (await session.view()).runs == 1
        await session.close()
