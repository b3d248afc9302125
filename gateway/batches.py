"""/v1/batches: create, describe, list, relabel and cancel."""

from __future__ import annotations

from google.api import httpbody_pb2

from gateway.answer import TENANT, Context, json_body
from gateway.batch_object import BatchObject
from gateway.body import Body, decoded
from gateway.peers import Peer
from gateway.query import Page, integer, parameters
from haywain import errors, ids
from haywain.batches.v1 import batches_pb2
from haywain.settings import BatchesSettings

__all__ = ["Batches", "creation"]

MAX_PAGE, PAGE = 100, 20
_PRIORITIES = {"standard": batches_pb2.Batch.PRIORITY_STANDARD, "expedited": batches_pb2.Batch.PRIORITY_EXPEDITED}


class Batches:
    """The batch routes."""

    def __init__(self, batches: Peer, settings: BatchesSettings) -> None:
        """Take the service that owns the batches."""
        self._batches = batches
        self._settings = settings

    async def create(self, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Create one."""
        parameters(context)
        request = creation(await decoded(body.data))
        # With an id of its own the call can be repeated when the service restarts during it, and still creates one batch.
        request.request_id = ids.new("create_")
        answer = await self._batches.ask(self._batches.stub.CreateBatch, request)
        return json_body(BatchObject.of(answer.batch))

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


def creation(members: dict[str, object]) -> batches_pb2.CreateBatchRequest:
    """Translate the body of a creation. Raises InvalidRequest for a missing, unknown or mistyped field.

    Words and limits that native callers meet as well are checked by the batches service.
    """
    body = Body(members)
    request = batches_pb2.CreateBatchRequest(
        tenant=TENANT,
        input_file_id=body.required("input_file_id"),
        endpoint=body.string("endpoint", "/v1/chat/completions"),
        completion_window=body.string("completion_window", "24h"),
        metadata=body.strings("metadata"),
        priority=_PRIORITIES[body.word("priority", "standard", tuple(_PRIORITIES))],
        model=body.string("model"),
        deterministic=body.boolean("deterministic"),
        defaults=batches_pb2.SamplingDefaults(
            max_decoding_length=body.integer("max_decoding_length"),
            max_context_length=body.integer("max_context_length"),
            temperature=body.decimal("temperature"),
            top_p=body.decimal("top_p"),
            top_k=body.integer("top_k"),
        ),
    )
    expiry = body.member("output_expires_after")
    if expiry is not None:
        expiry.word("anchor", "created_at", ("created_at",))
        seconds = expiry.integer("seconds", 1)
        if seconds is None:
            param = "output_expires_after.seconds"
            raise errors.InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
        request.output_expires_after_seconds = seconds
        expiry.finish()
    body.finish()
    return request
