"""/v1/batches: create, describe, list, relabel and cancel."""

from __future__ import annotations

from google.api import httpbody_pb2

from gateway.answer import TENANT, Context, header, json_body
from gateway.batch_object import BatchObject
from gateway.body import Body, decoded
from gateway.created_batch import CreatedBatch, NoValidRecords
from gateway.creation import creation, wait_seconds
from gateway.creations import Creations
from gateway.good_answers import GoodAnswers
from gateway.idempotency import REPLAYED, idempotency
from gateway.peers import Peer
from gateway.query import Page, integer, parameters
from haywain import crash, errors, ids
from haywain.batches.v1 import batches_pb2
from haywain.settings import BatchesSettings

__all__ = ["Batches"]

MAX_PAGE, PAGE = 100, 20


class Batches:
    """The batch routes."""

    def __init__(self, batches: Peer, settings: BatchesSettings) -> None:
        """Take the service that owns the batches."""
        self._batches = batches
        self._create = Creations(batches)
        self._good_answers = GoodAnswers(batches)
        self._settings = settings

    async def create(self, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Create one."""
        parameters(context)
        key = idempotency(context, body.data)
        request = creation(await decoded(body.data), body.data)
        # With an id of its own the call can be repeated when the service restarts during it, and still creates one batch. When
        # Envoy gave it, batches is told how the client was answered, and nothing begins before.
        named = header(context, "x-haywain-creation")
        request.request_id, request.held = named or ids.new("create_"), bool(named)
        if key is not None:
            request.idempotency.CopyFrom(key)
        request.wait_seconds = wait_seconds(context)
        answer = await self._create(request)
        crash.point("gateway:created")
        if not answer.HasField("batch"):
            await context.send_initial_metadata((("x-http-status", "400"),))
            return json_body(NoValidRecords.of(answer))
        if answer.replayed:
            await context.send_initial_metadata(REPLAYED)
        if request.held:
            self._good_answers.add(request.request_id)
        return json_body(CreatedBatch.created(answer))

    async def page(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer a page, newest first."""
        query = parameters(context, ("limit", "after"))
        limit = integer("limit", query.get("limit", str(PAGE)), 0, MAX_PAGE)
        if not limit:
            return json_body(Page(data=[]))
        request = batches_pb2.ListBatchesRequest(tenant=TENANT, page_size=limit, page_token=query.get("after", ""))
        try:
            page = await self._batches.ask(self._batches.stub.ListBatches, request)
        except errors.NoSuchCursor:
            raise errors.InvalidRequest(f"No batch found with id '{query.get('after', '')}'.", param="after") from None
        return json_body(Page.of([BatchObject.of(batch) for batch in page.batches], has_more=bool(page.next_page_token)))

    async def get(self, batch_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Describe one."""
        parameters(context)
        request = batches_pb2.GetBatchRequest(batch_id=batch_id, tenant=TENANT)
        answer = await self._batches.ask(self._batches.stub.GetBatch, request)
        return json_body(BatchObject.of(answer.batch))

    async def update(self, batch_id: str, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Replace the metadata of one; null or nothing in it takes all away."""
        parameters(context)
        members = await decoded(body.data)
        fields = Body(members)
        metadata = fields.strings("metadata")
        fields.finish()
        if "metadata" not in members:
            message = "Missing required parameter: 'metadata'."
            raise errors.InvalidRequest(message, code="missing_required_parameter", param="metadata")
        request = batches_pb2.UpdateBatchRequest(batch_id=batch_id, tenant=TENANT, metadata=metadata)
        answer = await self._batches.ask(self._batches.stub.UpdateBatch, request)
        return json_body(BatchObject.of(answer.batch))

    async def cancel(self, batch_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Stop one; the request's body, if any, means nothing."""
        parameters(context)
        request = batches_pb2.CancelBatchRequest(batch_id=batch_id, tenant=TENANT)
        try:
            answer = await self._batches.ask(self._batches.stub.CancelBatch, request)
        except errors.Conflict as error:
            if self._settings.cancel_conflict == 400:
                raise errors.InvalidRequest(error.message, code=error.code, param=error.param) from None
            raise
        return json_body(BatchObject.of(answer.batch))
