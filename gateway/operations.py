"""What each RPC of the gateway means to a client: the rows of the OpenAPI document. Paths and methods are in the proto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway import bodies
from gateway.batch_object import BatchObject
from gateway.created_batch import CreatedBatch, NoValidRecords
from gateway.files import DeletedFile, FileObject
from gateway.health import DetailedHealth, Healthy, PoolObject, Unhealthy
from gateway.leases import LeaseObject
from gateway.models import ModelList, ModelObject
from gateway.query import Page
from gateway.uploads import PartObject, UploadObject
from haywain import openai

__all__ = ["BYTES", "EVENTS", "FORM", "JSON", "JSONL", "OPERATIONS", "Operation", "Parameter"]

JSON, FORM, JSONL = "application/json", "multipart/form-data", "application/jsonl"
BYTES, EVENTS = "application/octet-stream", "text/event-stream"
TEXT, HTML = "text/plain", "text/html"


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that isn't in the path."""

    name: str
    type: Any
    what: str
    place: Literal["query", "header"] = "query"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An RPC. Bodies by content type: a struct, or None for bytes that no schema describes."""

    tag: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    request: Mapping[str, Any] = {}
    body_needed: bool = True
    answers: Mapping[int, Mapping[str, Any]]
    headers: Mapping[str, str] = {}
    """of the answers"""


def _page(most: int, default: int, *more: Parameter) -> tuple[Parameter, ...]:
    limit = Parameter("limit", Annotated[int, Meta(ge=0, le=most)], f"Objects a page, {default} by default.")
    return (limit, Parameter("after", str, "The id that the page before ended with."), *more)


def _json(kind: Any) -> dict[int, dict[str, Any]]:
    return {200: {JSON: kind}}


_RANGE: Final = Parameter("range", str, "One range of bytes: `bytes=0-1023`.", "header")
_IF_RANGE: Final = Parameter("if-range", str, "The ETag that `Range` is for.", "header")
_IF_MATCH: Final = Parameter("if-match", str, "ETags of which the bytes must have one; 412 otherwise.", "header")
_IF_NONE_MATCH: Final = Parameter("if-none-match", str, "ETags of bytes that the caller has; 304 for those.", "header")
_KEY: Final = Parameter("idempotency-key", Annotated[str, Meta(min_length=1, max_length=512)], "A name for this request.", "header")
_LEASE: Final = Parameter("x-haywain-lease", str, "The id of the lease of the model that you hold.", "header")
_REPLAYED: Final = {"idempotent-replayed": "`true` when an earlier request with the same key got this answer."}
_COMPLETIONS: Final = 'Errors after the first event are events: `data: {"error": …}`; the last event is `data: [DONE]`.'

OPERATIONS: Final[Mapping[str, Operation]] = {
    "UploadFile": Operation(
        tag="Files",
        summary="Store a file",
        parameters=(_KEY,),
        request={FORM: bodies.FileUpload},
        answers=_json(FileObject),
        headers=_REPLAYED,
    ),
    "ListFiles": Operation(
        tag="Files",
        summary="List files",
        parameters=_page(
            10_000,
            10_000,
            Parameter("purpose", str, "Only files of this purpose."),
            Parameter("order", Literal["asc", "desc"], "By time of creation, `desc` by default."),
        ),
        answers=_json(Page[FileObject]),
    ),
    "GetFile": Operation(tag="Files", summary="Describe a file", answers=_json(FileObject)),
    "DeleteFile": Operation(tag="Files", summary="Delete a file", answers=_json(DeletedFile)),
    "GetFileContent": Operation(
        tag="Files",
        summary="Download a file; HEAD for its headers alone",
        parameters=(_RANGE, _IF_RANGE, _IF_MATCH, _IF_NONE_MATCH),
        answers={200: {BYTES: None}, 206: {BYTES: None}, 304: {}},
        headers={"etag": "Names the bytes.", "content-disposition": "The file's name."},
    ),
    "CreateUpload": Operation(
        tag="Uploads",
        summary="Announce a file that comes in parts",
        parameters=(_KEY,),
        request={JSON: bodies.UploadCreation},
        answers=_json(UploadObject),
        headers=_REPLAYED,
    ),
    "AddUploadPart": Operation(
        tag="Uploads",
        summary="Store a part",
        parameters=(_KEY,),
        request={FORM: bodies.PartUpload},
        answers=_json(PartObject),
        headers=_REPLAYED,
    ),
    "CompleteUpload": Operation(
        tag="Uploads",
        summary="Make a file of parts",
        parameters=(_KEY,),
        request={JSON: bodies.UploadCompletion},
        answers=_json(UploadObject),
        headers=_REPLAYED,
    ),
    "CancelUpload": Operation(
        tag="Uploads", summary="Drop an upload with its parts", parameters=(_KEY,), answers=_json(UploadObject), headers=_REPLAYED
    ),
    "CreateBatch": Operation(
        tag="Batches",
        summary="Create a batch",
        parameters=(
            _KEY,
            Parameter("prefer", str, "`wait=10`: answer after validation, or after so many seconds; 30 at most.", "header"),
        ),
        request={JSON: bodies.BatchCreation},
        answers={**_json(CreatedBatch), 400: {JSON: NoValidRecords}},
        headers=_REPLAYED,
    ),
    "ListBatches": Operation(
        tag="Batches", summary="List batches, newest first", parameters=_page(100, 20), answers=_json(Page[BatchObject])
    ),
    "GetBatch": Operation(tag="Batches", summary="Describe a batch", answers=_json(BatchObject)),
    "UpdateBatch": Operation(
        tag="Batches", summary="Replace a batch's metadata", request={JSON: bodies.BatchUpdate}, answers=_json(BatchObject)
    ),
    "CancelBatch": Operation(tag="Batches", summary="Stop a batch", answers=_json(BatchObject)),
    "GetBatchResults": Operation(
        tag="Batches",
        summary="Read the result lines that there are so far",
        parameters=(Parameter("after_line", Annotated[int, Meta(ge=0)], "Lines to leave out: those that were read before."),),
        answers={200: {JSONL: None}},
        headers={
            "x-incomplete": "`true` until the batch has ended and there can be no more lines.",
            "x-results-order": "`completion`: as rows ended. `files`: of the output file, then of the error file.",
        },
    ),
    "LeaseToBatch": Operation(
        tag="Leases", summary="Hand a lease to a batch", request={JSON: bodies.LeaseHandover}, answers=_json(BatchObject)
    ),
    "CreateLease": Operation(
        tag="Leases",
        summary="Lease a model",
        parameters=(_KEY,),
        request={JSON: bodies.LeaseCreation},
        answers=_json(LeaseObject),
        headers=_REPLAYED,
    ),
    "ListLeases": Operation(
        tag="Leases", summary="List leases, newest first", parameters=_page(100, 20), answers=_json(Page[LeaseObject])
    ),
    "GetLease": Operation(tag="Leases", summary="Describe a lease", answers=_json(LeaseObject)),
    "RenewLease": Operation(
        tag="Leases",
        summary="Let a lease last longer",
        request={JSON: bodies.LeaseRenewal},
        body_needed=False,
        answers=_json(LeaseObject),
    ),
    "DeleteLease": Operation(tag="Leases", summary="End a lease", answers=_json(LeaseObject)),
    "ListModels": Operation(tag="Models", summary="List the models served now", answers=_json(ModelList)),
    "GetModel": Operation(tag="Models", summary="Describe a model; ids may hold slashes", answers=_json(ModelObject)),
    "CreateChatCompletion": Operation(
        tag="Completions",
        summary=f"Answer a chat now. {_COMPLETIONS}",
        parameters=(_LEASE,),
        request={JSON: bodies.ChatRequest},
        answers={200: {JSON: openai.ChatCompletion, EVENTS: openai.ChatChunk}},
    ),
    "CreateCompletion": Operation(
        tag="Completions",
        summary=f"Complete a text now. {_COMPLETIONS}",
        parameters=(_LEASE,),
        request={JSON: bodies.CompletionRequest},
        answers={200: {JSON: openai.TextCompletion, EVENTS: openai.TextCompletion}},
    ),
    "CreateEmbedding": Operation(
        tag="Completions",
        summary="Embed texts now",
        parameters=(_LEASE,),
        request={JSON: bodies.EmbeddingRequest},
        answers=_json(openai.EmbeddingList),
    ),
    "GetHealth": Operation(
        tag="Health",
        summary="Tell whether a batch could run now; HEAD without a body",
        answers={200: {JSON: Healthy}, 503: {JSON: Unhealthy}},
    ),
    "GetDetailedHealth": Operation(
        tag="Health",
        summary="Tell how each component is",
        answers={200: {JSON: DetailedHealth}, 503: {JSON: DetailedHealth}},
    ),
    "GetPoolStatus": Operation(tag="Health", summary="Tell how full intake and slots are", answers=_json(PoolObject)),
    "GetMetrics": Operation(
        tag="Health", summary="Tell what all processes count and measure, for Prometheus", answers={200: {TEXT: None}}
    ),
    "GetPage": Operation(tag="Health", summary="The web page", answers={200: {HTML: None}}, headers={"etag": "Names the bytes."}),
    "GetOpenAPI": Operation(tag="Health", summary="This document", answers={200: {JSON: dict[str, Any]}}),
}
