"""A session's page in the Temporal Web UI, drawn when somebody looks at it.

The SDK's way is to set it whenever it changes. A session changes with every batch, and drawing its page costs as
much as deciding one; the UI asks for it by a query.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.worker import (
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from workflows.session import AgentSession


class Pages(Interceptor):
    """Puts the page of a session into the answer of the query for the workflow's metadata."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """The same for every workflow type."""
        return _Drawing


class _Drawing(WorkflowInboundInterceptor):
    async def handle_query(self, input: HandleQueryInput) -> Any:
        answer = await super().handle_query(input)
        session = workflow.instance()
        if isinstance(answer, WorkflowMetadata) and isinstance(session, AgentSession):
            answer.current_details = session.page()
        return answer
