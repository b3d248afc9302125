"""The gateway: OpenAI's REST surface as `haywain.gateway.v1.OpenAIService`, which Envoy transcodes HTTP onto.

Stateless. Each RPC is a route; the files of this package are its resources. Bodies are raw bytes both ways, the query string
comes in metadata, and envelope.py turns errors into HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from gateway import envelope
from gateway.answer import Context, json_body
from gateway.batches import Batches
from gateway.completions import CHAT, COMPLETIONS, EMBEDDINGS, Completions
from gateway.files import Files
from gateway.health import Health
from gateway.leases import Leases
from gateway.metrics import CountingInterceptor, Metrics
from gateway.models import Models
from gateway.openapi import document
from gateway.page import Page
from gateway.peers import Peers
from gateway.query import parameters
from gateway.results import Results
from gateway.storage import Storage
from gateway.uploads import Uploads
from haywain import log, rpc
from haywain.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from haywain.settings import Settings

__all__ = ["OpenAIServiceServicer", "serve"]

NAME = "haywain.gateway.v1.OpenAIService"
TYPED = (
    "haywain.files.v1.FilesService",
    "haywain.files.v1.UploadsService",
    "haywain.batches.v1.BatchesService",
    "haywain.scheduler.v1.SchedulerService",
)
"""what native callers find behind Envoy, which sends reflection here"""
_log = log.get()


class OpenAIServiceServicer(gateway_pb2_grpc.OpenAIServiceServicer):
    """Puts bodies into messages. The methods' contracts are in the proto and in REST.md."""

    def __init__(self, settings: Settings, peers: Peers) -> None:
        """Make the resources."""
        self._files = Files(peers.files)
        self._uploads = Uploads(peers.files)
        self._batches = Batches(peers.batches, settings.batches)
        self._models = Models(peers.scheduler, aliases=settings.scheduler.aliases)
        self._leases = Leases(peers.scheduler, peers.batches, settings.scheduler)
        self._results = Results(peers)
        self._completions = Completions(peers.scheduler, self._models, settings.gateway)
        self._health = Health(peers, Storage(settings.data))
        self.metrics = Metrics(peers)
        self._page = Page()

    async def UploadFile(
        self, messages: AsyncIterator[gateway_pb2.UploadFileRequest], context: Context
    ) -> gateway_pb2.UploadFileResponse:
        """POST /v1/files"""
        return gateway_pb2.UploadFileResponse(http_body=await self._files.upload(messages, context))

    async def ListFiles(self, request: gateway_pb2.ListFilesRequest, context: Context) -> gateway_pb2.ListFilesResponse:
        """GET /v1/files"""
        return gateway_pb2.ListFilesResponse(http_body=await self._files.page(context))

    async def GetFile(self, request: gateway_pb2.GetFileRequest, context: Context) -> gateway_pb2.GetFileResponse:
        """GET /v1/files/{file_id}"""
        return gateway_pb2.GetFileResponse(http_body=await self._files.get(request.file_id, context))

    async def DeleteFile(self, request: gateway_pb2.DeleteFileRequest, context: Context) -> gateway_pb2.DeleteFileResponse:
        """DELETE /v1/files/{file_id}"""
        return gateway_pb2.DeleteFileResponse(http_body=await self._files.delete(request.file_id, context))

    async def GetFileContent(
        self, request: gateway_pb2.GetFileContentRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.GetFileContentResponse, None]:
        """GET and HEAD /v1/files/{file_id}/content"""
        async with contextlib.aclosing(self._files.content(request.file_id, context)) as bodies:
            async for body in bodies:
                yield gateway_pb2.GetFileContentResponse(http_body=body)

    async def CreateUpload(self, request: gateway_pb2.CreateUploadRequest, context: Context) -> gateway_pb2.CreateUploadResponse:
        """POST /v1/uploads"""
        return gateway_pb2.CreateUploadResponse(http_body=await self._uploads.create(request.http_body, context))

    async def AddUploadPart(
        self, messages: AsyncIterator[gateway_pb2.AddUploadPartRequest], context: Context
    ) -> gateway_pb2.AddUploadPartResponse:
        """POST /v1/uploads/{upload_id}/parts"""
        return gateway_pb2.AddUploadPartResponse(http_body=await self._uploads.add_part(messages, context))

    async def CompleteUpload(
        self, request: gateway_pb2.CompleteUploadRequest, context: Context
    ) -> gateway_pb2.CompleteUploadResponse:
        """POST /v1/uploads/{upload_id}/complete"""
        answer = await self._uploads.complete(request.upload_id, request.http_body, context)
        return gateway_pb2.CompleteUploadResponse(http_body=answer)

    async def CancelUpload(self, request: gateway_pb2.CancelUploadRequest, context: Context) -> gateway_pb2.CancelUploadResponse:
        """POST /v1/uploads/{upload_id}/cancel"""
        return gateway_pb2.CancelUploadResponse(http_body=await self._uploads.cancel(request.upload_id, context))

    async def CreateBatch(self, request: gateway_pb2.CreateBatchRequest, context: Context) -> gateway_pb2.CreateBatchResponse:
        """POST /v1/batches"""
        return gateway_pb2.CreateBatchResponse(http_body=await self._batches.create(request.http_body, context))

    async def ListBatches(self, request: gateway_pb2.ListBatchesRequest, context: Context) -> gateway_pb2.ListBatchesResponse:
        """GET /v1/batches"""
        return gateway_pb2.ListBatchesResponse(http_body=await self._batches.page(context))

    async def GetBatch(self, request: gateway_pb2.GetBatchRequest, context: Context) -> gateway_pb2.GetBatchResponse:
        """GET /v1/batches/{batch_id}"""
        return gateway_pb2.GetBatchResponse(http_body=await self._batches.get(request.batch_id, context))

    async def UpdateBatch(self, request: gateway_pb2.UpdateBatchRequest, context: Context) -> gateway_pb2.UpdateBatchResponse:
        """POST /v1/batches/{batch_id}"""
        return gateway_pb2.UpdateBatchResponse(http_body=await self._batches.update(request.batch_id, request.http_body, context))

    async def GetBatchResults(
        self, request: gateway_pb2.GetBatchResultsRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.GetBatchResultsResponse, None]:
        """GET /v1/batches/{batch_id}/results"""
        async with contextlib.aclosing(self._results.read(request.batch_id, context)) as bodies:
            async for body in bodies:
                yield gateway_pb2.GetBatchResultsResponse(http_body=body)

    async def CancelBatch(self, request: gateway_pb2.CancelBatchRequest, context: Context) -> gateway_pb2.CancelBatchResponse:
        """POST /v1/batches/{batch_id}/cancel"""
        return gateway_pb2.CancelBatchResponse(http_body=await self._batches.cancel(request.batch_id, context))

    async def LeaseToBatch(self, request: gateway_pb2.LeaseToBatchRequest, context: Context) -> gateway_pb2.LeaseToBatchResponse:
        """POST /v1/batches/{batch_id}/lease"""
        return gateway_pb2.LeaseToBatchResponse(http_body=await self._leases.hand(request.batch_id, request.http_body, context))

    async def CreateLease(self, request: gateway_pb2.CreateLeaseRequest, context: Context) -> gateway_pb2.CreateLeaseResponse:
        """POST /v1/leases"""
        return gateway_pb2.CreateLeaseResponse(http_body=await self._leases.create(request.http_body, context))

    async def ListLeases(self, request: gateway_pb2.ListLeasesRequest, context: Context) -> gateway_pb2.ListLeasesResponse:
        """GET /v1/leases"""
        return gateway_pb2.ListLeasesResponse(http_body=await self._leases.page(context))

    async def GetLease(self, request: gateway_pb2.GetLeaseRequest, context: Context) -> gateway_pb2.GetLeaseResponse:
        """GET /v1/leases/{lease_id}"""
        return gateway_pb2.GetLeaseResponse(http_body=await self._leases.get(request.lease_id, context))

    async def RenewLease(self, request: gateway_pb2.RenewLeaseRequest, context: Context) -> gateway_pb2.RenewLeaseResponse:
        """POST /v1/leases/{lease_id}/renew"""
        return gateway_pb2.RenewLeaseResponse(http_body=await self._leases.renew(request.lease_id, request.http_body, context))

    async def DeleteLease(self, request: gateway_pb2.DeleteLeaseRequest, context: Context) -> gateway_pb2.DeleteLeaseResponse:
        """DELETE /v1/leases/{lease_id}"""
        return gateway_pb2.DeleteLeaseResponse(http_body=await self._leases.delete(request.lease_id, context))

    async def ListModels(self, request: gateway_pb2.ListModelsRequest, context: Context) -> gateway_pb2.ListModelsResponse:
        """GET /v1/models"""
        return gateway_pb2.ListModelsResponse(http_body=await self._models.listing(context))

    async def GetModel(self, request: gateway_pb2.GetModelRequest, context: Context) -> gateway_pb2.GetModelResponse:
        """GET /v1/models/{model}"""
        return gateway_pb2.GetModelResponse(http_body=await self._models.get(request.model, context))

    async def CreateChatCompletion(
        self, request: gateway_pb2.CreateChatCompletionRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.CreateChatCompletionResponse, None]:
        """POST /v1/chat/completions"""
        async with contextlib.aclosing(self._completions.create(CHAT, request.http_body, context)) as bodies:
            async for body in bodies:
                yield gateway_pb2.CreateChatCompletionResponse(http_body=body)

    async def CreateCompletion(
        self, request: gateway_pb2.CreateCompletionRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.CreateCompletionResponse, None]:
        """POST /v1/completions"""
        async with contextlib.aclosing(self._completions.create(COMPLETIONS, request.http_body, context)) as bodies:
            async for body in bodies:
                yield gateway_pb2.CreateCompletionResponse(http_body=body)

    async def CreateEmbedding(
        self, request: gateway_pb2.CreateEmbeddingRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.CreateEmbeddingResponse, None]:
        """POST /v1/embeddings"""
        async with contextlib.aclosing(self._completions.create(EMBEDDINGS, request.http_body, context)) as bodies:
            async for body in bodies:
                yield gateway_pb2.CreateEmbeddingResponse(http_body=body)

    async def GetHealth(self, request: gateway_pb2.GetHealthRequest, context: Context) -> gateway_pb2.GetHealthResponse:
        """GET and HEAD /health"""
        return gateway_pb2.GetHealthResponse(http_body=await self._health.health(context))

    async def GetDetailedHealth(
        self, request: gateway_pb2.GetDetailedHealthRequest, context: Context
    ) -> gateway_pb2.GetDetailedHealthResponse:
        """GET /health/detailed"""
        return gateway_pb2.GetDetailedHealthResponse(http_body=await self._health.detailed(context))

    async def GetMetrics(self, request: gateway_pb2.GetMetricsRequest, context: Context) -> gateway_pb2.GetMetricsResponse:
        """GET /metrics"""
        return gateway_pb2.GetMetricsResponse(http_body=await self.metrics.scrape(context))

    async def GetPage(self, request: gateway_pb2.GetPageRequest, context: Context) -> gateway_pb2.GetPageResponse:
        """GET / and /web/{name}"""
        return gateway_pb2.GetPageResponse(http_body=await self._page.file(request.name, context))

    async def GetOpenAPI(self, request: gateway_pb2.GetOpenAPIRequest, context: Context) -> gateway_pb2.GetOpenAPIResponse:
        """GET /openapi.json"""
        parameters(context)
        return gateway_pb2.GetOpenAPIResponse(http_body=json_body(document()))

    async def GetPoolStatus(self, request: gateway_pb2.GetPoolStatusRequest, context: Context) -> gateway_pb2.GetPoolStatusResponse:
        """GET /v1/pool/status"""
        return gateway_pb2.GetPoolStatusResponse(http_body=await self._health.pool(context))


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve until `stopping` is set."""
    peers = Peers(settings)
    servicer = OpenAIServiceServicer(settings, peers)
    try:
        interceptor = CountingInterceptor(on_error=envelope.metadata, on_broken_stream=envelope.BROKEN_STREAM)
        service = (servicer, gateway_pb2_grpc.add_OpenAIServiceServicer_to_server, NAME)
        async with rpc.serving(settings.address("gateway"), [service], interceptor=interceptor, reflected=TYPED):
            _log.info("gateway.ready", address=settings.address("gateway"))
            await stopping.wait()
    finally:
        await servicer.metrics.close()
        await peers.close()
