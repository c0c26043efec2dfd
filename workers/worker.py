"""The one place that wires everything: stores, buses and keys into activities, activities into workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, Self

from opentelemetry.trace import TracerProvider
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import Runtime
from temporalio.worker import (
    Interceptor,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerDeploymentConfig,
    WorkflowRunner,
)

from activities.buses.base import EventBus
from activities.custom_events import CustomEventsActivity
from activities.embedders import HashEmbedder
from activities.embedding import Embedder, EmbeddingActivity
from activities.inputs import LostInputs
from activities.journaling import JournalingActivity
from activities.promotion import PromotionActivity
from activities.publishing import PublishingActivity
from activities.receipts import Receipts
from activities.sealed import SealedEvidence
from activities.signing import SigningActivity
from activities.telemetry import StageTelemetry, StartedAt
from activities.trajectory import TrajectoryActivity
from activities.waking import WakingActivity
from affidavit.assessment import BUILT_IN
from affidavit.contract import signing_queue
from affidavit.evidence.keyring import Keyring
from affidavit.evidence.keys import Signer
from affidavit.evidence.layout import PUBLIC_KEYS
from affidavit.stores.base import EvidenceStore, ObjectExists
from affidavit.stores.place import open_store
from workers.asking import SearchAttributesThere
from workers.buses import make_bus
from workers.pages import Pages
from workers.runner import CarefulRunner
from workers.settings import SettingsError, WorkerSettings
from workers.tasks import CompletedTasks
from workers.telemetry import LiveMeter
from workflows import embedding
from workflows.grants import GrantBook
from workflows.promotion import TrajectoryPromotion
from workflows.session import AgentSession

FIRST_RUNS_KEPT = 10_000
ANSWER_LIMIT_S = 5.0


def workflow_runner(runner: WorkflowRunner | None = None) -> WorkflowRunner:
    """How workflows are run. Replays of saved histories use the same, or another `runner` that knows no queries.

    Without the SDK's sandbox. It restricts modules that it loads itself, anew for every run, and all of ours would have
    to pass it unseen: they are dear to import. What is left of it is a tenth of a worker's time. That workflow code
    reaches for no clock, chance, file or process is a test's business (`tests/unit/test_import_rules.py`).

    Workflow code gets the built-in embedder here, also where the worker has another one: a session goes on with that
    which it began with.
    """
    embedding.provide(EmbeddingActivity(HashEmbedder()).assess)
    return runner or UnsandboxedWorkflowRunner()


class Workers:
    """The workers of one process. `async with` runs them; leaving the block lets them finish within their grace."""

    def __init__(
        self, workers: list[Worker], executor: ThreadPoolExecutor, closers: list[Callable[[], Awaitable[None]]]
    ) -> None:
        self._workers = workers
        self._executor = executor
        self._closers = closers
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.callback(self._shutdown_executor)
        for closer in self._closers:
            self._stack.push_async_callback(closer)
        try:
            for worker in self._workers:
                await self._stack.enter_async_context(worker)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # All at once: one after the other would add up their graces.
        await asyncio.gather(*(worker.shutdown() for worker in self._workers))
        await self._stack.aclose()

    def _shutdown_executor(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class FirstRuns:
    """Asks Temporal for the first run of a chain of runs, from an activity's thread; an answer never changes."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._known: dict[tuple[str, str], str] = {}

    def __call__(self, workflow_id: str, run_id: str) -> str:
        """The run id; raises what the client raises, which may be tried again."""
        key = (workflow_id, run_id)
        if key not in self._known:
            if len(self._known) >= FIRST_RUNS_KEPT:
                self._known.clear()
            self._known[key] = asyncio.run_coroutine_threadsafe(self._ask(*key), self._loop).result(ANSWER_LIMIT_S)
        return self._known[key]

    async def _ask(self, workflow_id: str, run_id: str) -> str:
        described = await self._client.get_workflow_handle(workflow_id, run_id=run_id).describe()
        return described.raw_description.workflow_execution_info.first_run_id


def build_worker(
    client: Client,
    settings: WorkerSettings,
    *,
    store: EvidenceStore | None = None,
    bus: EventBus | None = None,
    embedder: Embedder | None = None,
    tracers: TracerProvider | None = None,
) -> Workers:
    """Wire the workers that the settings ask for; nothing runs yet.

    Args:
        client: connected with `data_converter(store)` on the same store: big payloads of its sessions are there.
        settings: from the environment, or made by hand.
        store, bus: instead of what the settings name; the bus is closed with the workers.
        embedder: instead of the built-in one, for the sessions that are opened here; it is asked in an activity.
        tracers: where spans go, instead of the process' own provider.

    Raises:
        SettingsError, KeyFileError, KeyringError, BusLogError, KafkaSettingsError, IntegrityError, StorePlaceError,
            StoreUnfit, TransientError, OSError: something it needs is not in order.
        ValueError: the client's converter has no store.
    """
    if client.data_converter.external_storage is None:
        raise ValueError("a worker's client needs a data converter with the evidence store")
    keys = settings.read_journal_keys()
    store = store or open_store(settings.store)
    evidence = SealedEvidence(store, keys, FirstRuns(client, asyncio.get_running_loop()))
    executor = ThreadPoolExecutor(max_workers=settings.threads, thread_name_prefix="activity")
    runtime = client.service_client.config.runtime or Runtime.default()
    telemetry = [StageTelemetry(_start_times(client), tracers), LiveMeter(runtime.metric_meter)]
    workers: list[Worker] = []
    closers: list[Callable[[], Awaitable[None]]] = []
    if "session" in settings.roles:
        bus = bus or make_bus(settings)
        closers.append(bus.close)
        there = SearchAttributesThere(client, asyncio.get_running_loop())
        journaling = JournalingActivity(evidence, there, BUILT_IN if embedder is None else "")
        waking = WakingActivity(client, settings.task_queue)
        activities: list[Callable[..., Any]] = [
            EmbeddingActivity(embedder or HashEmbedder()).embed,
            CustomEventsActivity().check,
            journaling.open,
            journaling.journal,
            journaling.lifecycle,
            journaling.outcome,
            TrajectoryActivity(evidence).write,
            PublishingActivity(store, bus, keys).publish,
            waking.locate,
            waking.deliver,
        ]
        workflows = [AgentSession, TrajectoryPromotion, GrantBook]
        workers.append(_worker(client, settings, settings.task_queue, executor, activities, workflows, telemetry))
    if "signing" in settings.roles:
        signer = settings.read_signer()
        ring = settings.read_keyring(signer)
        _publish_keyring(store, ring, signer)
        receipts = Receipts(store, signer, Keyring.parse(ring))
        activities = [SigningActivity(evidence, receipts).seal, PromotionActivity(evidence, receipts).promote]
        queue = signing_queue(settings.task_queue)
        workers.append(_worker(client, settings, queue, executor, activities, [], telemetry))
    return Workers(workers, executor, closers)


def _worker(
    client: Client,
    settings: WorkerSettings,
    task_queue: str,
    executor: ThreadPoolExecutor,
    activities: list[Callable[..., Any]],
    workflows: list[type],
    telemetry: list[Interceptor],
) -> Worker:
    return Worker(
        client,
        task_queue=task_queue,
        activities=activities,
        workflows=workflows,
        interceptors=[*telemetry, LostInputs(), Pages()],
        activity_executor=executor,
        workflow_runner=workflow_runner(CarefulRunner(CompletedTasks(client, asyncio.get_running_loop()))),
        max_concurrent_activities=settings.threads,
        max_concurrent_local_activities=settings.threads,
        max_cached_workflows=settings.max_cached_workflows,
        graceful_shutdown_timeout=timedelta(seconds=settings.grace_s),
        # The default of a minute would hold a heartbeat back longer than its timeout.
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        default_heartbeat_throttle_interval=timedelta(seconds=2),
        # A worker that is gone keeps its sticky tasks from the others for this long (behaviours H6).
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=5),
        deployment_config=_deployment(settings),
    )


def _deployment(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Worker versioning, where a deployment is named: a session stays with the build that took its run up, and hands
    itself on to a new one (`workflows.rollover`)."""
    if settings.deployment is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=settings.deployment, build_id=settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def _start_times(client: Client) -> StartedAt:
    async def started_at(workflow_id: str, generation: str) -> datetime | None:
        try:
            described = await client.get_workflow_handle(workflow_id, run_id=generation).describe(
                rpc_timeout=timedelta(seconds=ANSWER_LIMIT_S)
            )
        except Exception:  # noqa: BLE001 - a trace without its root is no reason to do the stage again
            return None
        return described.start_time

    return started_at


def _publish_keyring(store: EvidenceStore, ring: bytes, signer: Signer) -> None:
    """Put the public keys beside the evidence, for auditors. What stands there is never changed."""
    try:
        store.create(PUBLIC_KEYS, ring)
    except ObjectExists:
        if Keyring.parse(store.read(PUBLIC_KEYS)).find(signer.key_id) is None:
            raise SettingsError(
                f"{PUBLIC_KEYS} in the evidence store does not hold the signer's key {signer.key_id}; add it there"
            ) from None
