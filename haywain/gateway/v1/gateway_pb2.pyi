from google.api import annotations_pb2 as _annotations_pb2
from google.api import httpbody_pb2 as _httpbody_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UploadFileRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class UploadFileResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetFileRequest(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class GetFileResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class DeleteFileRequest(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class DeleteFileResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetFileContentRequest(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class GetFileContentResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateUploadRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateUploadResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class AddUploadPartRequest(_message.Message):
    __slots__ = ("upload_id", "http_body")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, upload_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class AddUploadPartResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CompleteUploadRequest(_message.Message):
    __slots__ = ("upload_id", "http_body")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, upload_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CompleteUploadResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CancelUploadRequest(_message.Message):
    __slots__ = ("upload_id", "http_body")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, upload_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CancelUploadResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateBatchRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateBatchResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class ListBatchesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBatchesResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetBatchRequest(_message.Message):
    __slots__ = ("batch_id",)
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    def __init__(self, batch_id: _Optional[str] = ...) -> None: ...

class GetBatchResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CancelBatchRequest(_message.Message):
    __slots__ = ("batch_id", "http_body")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, batch_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CancelBatchResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateChatCompletionRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateChatCompletionResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetHealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHealthResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetPoolStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPoolStatusResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class UpdateBatchRequest(_message.Message):
    __slots__ = ("batch_id", "http_body")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, batch_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class UpdateBatchResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetBatchResultsRequest(_message.Message):
    __slots__ = ("batch_id",)
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    def __init__(self, batch_id: _Optional[str] = ...) -> None: ...

class GetBatchResultsResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateCompletionRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateCompletionResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateEmbeddingRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateEmbeddingResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetDetailedHealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDetailedHealthResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetOpenAPIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOpenAPIResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetPageRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetPageResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class LeaseToBatchRequest(_message.Message):
    __slots__ = ("batch_id", "http_body")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, batch_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class LeaseToBatchResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateLeaseRequest(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class CreateLeaseResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class GetLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class GetLeaseResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "http_body")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, lease_id: _Optional[str] = ..., http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...

class DeleteLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class DeleteLeaseResponse(_message.Message):
    __slots__ = ("http_body",)
    HTTP_BODY_FIELD_NUMBER: _ClassVar[int]
    http_body: _httpbody_pb2.HttpBody
    def __init__(self, http_body: _Optional[_Union[_httpbody_pb2.HttpBody, _Mapping]] = ...) -> None: ...
