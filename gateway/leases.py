"""/v1/leases, and /v1/batches/{id}/lease: a model for one's own use, for a while."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway.answer import TENANT, Context, header, json_body
from gateway.batch_object import BatchObject
from gateway.body import Body, decoded
from gateway.idempotency import idempotency_key, tell_replayed
from gateway.peers import Peer
from gateway.query import Page, integer, parameters
from haywain import errors, ids
from haywain.batches.v1 import batches_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import SchedulerSettings

__all__ = ["LEASE_HEADER", "LeaseObject", "Leases", "lease_named"]

LEASE_HEADER = "x-haywain-lease"
MAX_PAGE, PAGE = 100, 20
_ID_LENGTH = 128
_ENDED = frozenset(
    {
        batches_pb2.Batch.STATUS_COMPLETED,
        batches_pb2.Batch.STATUS_FAILED,
        batches_pb2.Batch.STATUS_EXPIRED,
        batches_pb2.Batch.STATUS_CANCELLED,
    }
)


class LeaseObject(msgspec.Struct, kw_only=True):
    """A lease as clients see it."""

    id: str
    object: Literal["lease"] = "lease"
    model: str
    holder: str | None
    status: str
    ttl_seconds: int
    created_at: int
    expires_at: int
    ended_at: int | None
    batch_id: str | None
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, lease: pb.ModelLease) -> LeaseObject:
        """Make from a record."""
        return cls(
            id=lease.lease_id,
            model=lease.model,
            holder=lease.holder or None,
            status=pb.ModelLease.State.Name(lease.state).removeprefix("STATE_").lower(),
            ttl_seconds=lease.ttl_seconds,
            created_at=lease.create_time.seconds,
            expires_at=lease.expire_time.seconds,
            ended_at=lease.end_time.seconds if lease.HasField("end_time") else None,
            batch_id=lease.batch_id or None,
            metadata=dict(sorted(lease.metadata.items())) or None,
        )


def lease_named(context: Context) -> str:
    """Read the header by which a request says that it holds a lease; empty when there is none. Raises LeaseMissing for no id."""
    named = header(context, LEASE_HEADER)
    if len(named) > _ID_LENGTH:
        raise errors.LeaseMissing(f"No lease found with id '{named[:_ID_LENGTH]}…'.", param="X-Haywain-Lease")
    return named


class Leases:
    """The lease routes."""

    def __init__(self, scheduler: Peer, batches: Peer, settings: SchedulerSettings) -> None:
        """Take the service that grants leases, and the one that knows all batches."""
        self._scheduler = scheduler
        self._batches = batches
        self._most_seconds = settings.model_lease_seconds_max

    async def create(self, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Lease a model."""
        parameters(context)
        key = idempotency_key(context)
        fields = Body(await decoded(body.data))
        request = pb.AcquireModelLeaseRequest(
            tenant=TENANT,
            model=fields.required("model"),
            ttl_seconds=fields.integer("ttl_seconds", 1, self._most_seconds),
            holder=fields.string("holder") if fields.given("holder") else "",
            metadata=fields.strings("metadata"),
            # With an id of its own the call can be repeated when the service restarts during it, and still grants one lease.
            request_id=ids.new("create_"),
            idempotency_key=key,
            fingerprint=hashlib.sha256(body.data).hexdigest() if key else "",
        )
        fields.finish()
        answer = await self._scheduler.ask(self._scheduler.stub.AcquireModelLease, request)
        await tell_replayed(context, answer)
        return json_body(LeaseObject.of(answer.lease))

    async def page(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer a page, newest first."""
        query = parameters(context, ("limit", "after"))
        limit = integer("limit", query.get("limit", str(PAGE)), 0, MAX_PAGE)
        if not limit:
            return json_body(Page(data=[]))
        request = pb.ListModelLeasesRequest(tenant=TENANT, page_size=limit, page_token=query.get("after", ""))
        try:
            page = await self._scheduler.ask(self._scheduler.stub.ListModelLeases, request)
        except errors.NoSuchCursor:
            raise errors.InvalidRequest(f"No lease found with id '{query.get('after', '')}'.", param="after") from None
        return json_body(Page.of([LeaseObject.of(lease) for lease in page.leases], has_more=bool(page.next_page_token)))

    async def get(self, lease_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Describe one."""
        parameters(context)
        request = pb.GetModelLeaseRequest(tenant=TENANT, lease_id=lease_id)
        answer = await self._scheduler.ask(self._scheduler.stub.GetModelLease, request)
        return json_body(LeaseObject.of(answer.lease))

    async def renew(self, lease_id: str, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Let one last longer; without a body, or without `ttl_seconds`, as long as it was granted for."""
        parameters(context)
        fields = Body(await decoded(body.data) if body.data else {})
        ttl_seconds = fields.integer("ttl_seconds", 1, self._most_seconds)
        fields.finish()
        request = pb.RenewModelLeaseRequest(tenant=TENANT, lease_id=lease_id, ttl_seconds=ttl_seconds)
        answer = await self._scheduler.ask(self._scheduler.stub.RenewModelLease, request)
        return json_body(LeaseObject.of(answer.lease))

    async def delete(self, lease_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """End one."""
        parameters(context)
        return json_body(LeaseObject.of(await self._release(lease_id)))

    async def hand(self, batch_id: str, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Hand a lease to a batch; answers the batch."""
        parameters(context)
        fields = Body(await decoded(body.data))
        lease_id = fields.required("lease_id")
        fields.finish()
        batch = await self._batch(batch_id)
        if batch.status in _ENDED:
            status = batches_pb2.Batch.Status.Name(batch.status).removeprefix("STATUS_").lower()
            raise errors.Conflict(f"Cannot hand a lease to a batch with status '{status}'.")
        request = pb.HandModelLeaseRequest(tenant=TENANT, lease_id=lease_id, batch_id=batch_id)
        await self._scheduler.ask(self._scheduler.stub.HandModelLease, request)
        batch = await self._batch(batch_id)
        if batch.status in _ENDED:  # meanwhile: the scheduler may have heard of the lease after the end of the batch
            await self._release(lease_id)
        return json_body(BatchObject.of(batch))

    async def _batch(self, batch_id: str) -> batches_pb2.Batch:
        request = batches_pb2.GetBatchRequest(batch_id=batch_id, tenant=TENANT)
        answer: batches_pb2.GetBatchResponse = await self._batches.ask(self._batches.stub.GetBatch, request)
        return answer.batch

    async def _release(self, lease_id: str) -> pb.ModelLease:
        request = pb.ReleaseModelLeaseRequest(tenant=TENANT, lease_id=lease_id)
        answer: pb.ReleaseModelLeaseResponse = await self._scheduler.ask(self._scheduler.stub.ReleaseModelLease, request)
        return answer.lease
