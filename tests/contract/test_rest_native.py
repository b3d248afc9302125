"""Native gRPC on the REST port: the typed services, health and reflection; and nothing else."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from rest_seam import MAX_BODY_BYTES, RestMesh

from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.gateway.v1 import gateway_pb2, gateway_pb2_grpc


def test_upload_and_download(rest_channel: grpc.Channel) -> None:
    """A typed client stores a file larger than any JSON body may be, and reads it back in pieces."""
    stub = files_pb2_grpc.FilesServiceStub(rest_channel)
    data = b"x" * (MAX_BODY_BYTES + 500_000)
    header = files_pb2.UploadFileRequest.Header(filename="a.bin", purpose="user_data")
    messages = [
        files_pb2.UploadFileRequest(header=header),
        files_pb2.UploadFileRequest(data=data),
        files_pb2.UploadFileRequest(end=files_pb2.UploadFileRequest.End(size_bytes=len(data))),
    ]
    file = stub.UploadFile(iter(messages), timeout=10).file
    assert file.size_bytes == len(data)
    first, *rest = stub.DownloadFile(files_pb2.DownloadFileRequest(file_id=file.file_id), timeout=10)
    assert first.file == file
    assert b"".join(message.data for message in rest) == data


def test_health(rest_channel: grpc.Channel) -> None:
    """The standard health service answers."""
    answer = health_pb2_grpc.HealthStub(rest_channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_typed_services(rest_channel: grpc.Channel) -> None:
    """Reflection tells the typed services and their descriptors."""
    database = ProtoReflectionDescriptorDatabase(rest_channel)
    listed = set(database.get_services())
    assert {"haywain.files.v1.FilesService", "haywain.batches.v1.BatchesService", "haywain.scheduler.v1.SchedulerService"} <= listed
    assert "haywain.gateway.v1.OpenAIService" not in listed
    assert database.FindFileContainingSymbol("haywain.batches.v1.BatchesService").package == "haywain.batches.v1"


@pytest.mark.parametrize("metadata", [(), (("x-haywain-rest", "1"),)])
def test_gateway_is_not_for_native_callers(rest_channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
    """The gateway's own service can't be called past the transcoder, not even with its header forged."""
    stub = gateway_pb2_grpc.OpenAIServiceStub(rest_channel)
    with pytest.raises(grpc.RpcError) as failed:
        stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=10, metadata=metadata)
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_service_away(rest_mesh: RestMesh, rest_channel: grpc.Channel) -> None:
    """A service that is away is UNAVAILABLE."""
    rest_mesh.stop("files")
    try:
        with pytest.raises(grpc.RpcError) as failed:
            files_pb2_grpc.FilesServiceStub(rest_channel).GetFile(files_pb2.GetFileRequest(file_id="x"), timeout=10)
    finally:
        rest_mesh.start("files")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
