"""The RPCs of model leases: checks what is asked for and translates, nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from haywain import errors, ids
from haywain.aliases import missing
from haywain.clock import timestamp
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import SchedulerSettings
from services.scheduler.model_lease_store import ModelLease, Wish
from services.scheduler.model_leases import ModelLeases

__all__ = ["ModelLeaseServicer"]

ModelsOf = Callable[[str], Awaitable[Collection[str]]]
_PAGE, _PAGE_MAX = 20, 100
_HOLDER_LENGTH = 256
_PAIRS, _KEY_LENGTH, _VALUE_LENGTH = 16, 64, 512
_STATES = {
    "active": pb.ModelLease.STATE_ACTIVE, "expired": pb.ModelLease.STATE_EXPIRED, "released": pb.ModelLease.STATE_RELEASED
}  # fmt: skip


class ModelLeaseServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """One method an RPC."""

    def __init__(self, leases: ModelLeases, settings: SchedulerSettings, models: ModelsOf) -> None:
        """`models` tells of which models a batch has rows left, none for one that isn't known; Conflict for one that has ended."""
        self._leases = leases
        self._lease_terms = settings
        self._models_of = models

    async def AcquireModelLease(self, request: pb.AcquireModelLeaseRequest, context: Any) -> pb.AcquireModelLeaseResponse:
        """Lease a model."""
        if not request.model:
            raise errors.InvalidRequest("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
        _check_length("holder", request.holder, _HOLDER_LENGTH)
        _check_metadata(request.metadata)
        terms = self._lease_terms
        ttl_seconds = self._ttl(request) or min(terms.model_lease_seconds, terms.model_lease_seconds_max)
        model = self._leases.names().get(request.model)
        if model is None:
            raise errors.ModelMissing(missing(request.model, self._lease_terms.aliases), param="model")
        wish = Wish(
            tenant=_tenant(request),
            model=model,
            holder=request.holder,
            metadata=dict(request.metadata),
            ttl_seconds=ttl_seconds,
            request_id=request.request_id,
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
        )
        lease, replayed = await self._leases.acquire(wish)
        told = _message(lease, "active") if replayed else self._told(lease)
        return pb.AcquireModelLeaseResponse(lease=told, replayed=replayed)

    async def GetModelLease(self, request: pb.GetModelLeaseRequest, context: Any) -> pb.GetModelLeaseResponse:
        """Describe a lease."""
        return pb.GetModelLeaseResponse(lease=self._told(await self._leases.get(_tenant(request), request.lease_id)))

    async def ListModelLeases(self, request: pb.ListModelLeasesRequest, context: Any) -> pb.ListModelLeasesResponse:
        """List leases, newest first."""
        size = request.page_size or _PAGE
        if not 0 < size <= _PAGE_MAX:
            raise errors.InvalidRequest(f"page_size must be 1 to {_PAGE_MAX}, but got {size}.", param="page_size")
        found = await self._leases.page(_tenant(request), after=request.page_token, size=size + 1)
        page = found[:size]
        more = page[-1].lease_id if len(found) > size else ""
        return pb.ListModelLeasesResponse(leases=map(self._told, page), next_page_token=more)

    async def RenewModelLease(self, request: pb.RenewModelLeaseRequest, context: Any) -> pb.RenewModelLeaseResponse:
        """Let a lease last longer."""
        lease = await self._leases.renew(_tenant(request), request.lease_id, self._ttl(request))
        return pb.RenewModelLeaseResponse(lease=self._told(lease))

    async def ReleaseModelLease(self, request: pb.ReleaseModelLeaseRequest, context: Any) -> pb.ReleaseModelLeaseResponse:
        """End a lease."""
        return pb.ReleaseModelLeaseResponse(lease=self._told(await self._leases.release(_tenant(request), request.lease_id)))

    async def HandModelLease(self, request: pb.HandModelLeaseRequest, context: Any) -> pb.HandModelLeaseResponse:
        """Hand a lease to a batch."""
        if not ids.is_one(request.batch_id):
            raise errors.BatchMissing(f"No batch found with id '{request.batch_id}'.")
        models = await self._models_of(request.batch_id)
        lease = await self._leases.hand(_tenant(request), request.lease_id, request.batch_id, models)
        return pb.HandModelLeaseResponse(lease=self._told(lease))

    def _told(self, lease: ModelLease) -> pb.ModelLease:
        return _message(lease, self._leases.state(lease))

    def _ttl(self, request: pb.AcquireModelLeaseRequest | pb.RenewModelLeaseRequest) -> int:
        """Give what is asked for, 0 where that is the default. Raises InvalidRequest."""
        if not request.HasField("ttl_seconds"):
            return 0
        most = self._lease_terms.model_lease_seconds_max
        for wrong, code, limit in (
            (request.ttl_seconds > most, "integer_above_max_value", f"at most {most}"),
            (request.ttl_seconds < 1, "integer_below_min_value", "at least 1"),
        ):
            if wrong:
                message = f"Invalid 'ttl_seconds': expected {limit}, but got {request.ttl_seconds}."
                raise errors.InvalidRequest(message, code=code, param="ttl_seconds")
        return request.ttl_seconds


def _tenant(request: Any) -> str:
    return request.tenant or "default"


def _message(lease: ModelLease, state: str) -> pb.ModelLease:
    over = state != "active"
    return pb.ModelLease(
        lease_id=lease.lease_id,
        model=lease.model,
        holder=lease.holder,
        metadata=lease.metadata,
        state=_STATES[state],
        ttl_seconds=lease.ttl_seconds,
        create_time=timestamp(lease.create_time),
        expire_time=timestamp(lease.expire_time),
        end_time=timestamp(lease.end_time or lease.expire_time) if over else None,
        batch_id=lease.batch_id,
    )


def _check_length(param: str, text: str, limit: int) -> None:
    if len(text) > limit:
        message = f"Invalid '{param}': expected at most {limit} characters, but got {len(text)}."
        raise errors.InvalidRequest(message, code="string_above_max_length", param=param)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _PAIRS:
        message = f"Invalid 'metadata': expected at most {_PAIRS} pairs, but got {len(metadata)}."
        raise errors.InvalidRequest(message, code="object_above_max_properties", param="metadata")
    for key, value in metadata.items():
        param = f"metadata.{key[:_KEY_LENGTH]}"
        _check_length(param, key, _KEY_LENGTH)
        _check_length(param, value, _VALUE_LENGTH)
