import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class File(_message.Message):
    __slots__ = ("file_id", "tenant", "filename", "purpose", "status", "status_details", "size_bytes", "line_count", "sha256", "create_time", "expire_time")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[File.Status]
        STATUS_UPLOADED: _ClassVar[File.Status]
        STATUS_PROCESSED: _ClassVar[File.Status]
        STATUS_ERROR: _ClassVar[File.Status]
        STATUS_EXPIRED: _ClassVar[File.Status]
        STATUS_DELETED: _ClassVar[File.Status]
    STATUS_UNSPECIFIED: File.Status
    STATUS_UPLOADED: File.Status
    STATUS_PROCESSED: File.Status
    STATUS_ERROR: File.Status
    STATUS_EXPIRED: File.Status
    STATUS_DELETED: File.Status
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tenant: str
    filename: str
    purpose: str
    status: File.Status
    status_details: str
    size_bytes: int
    line_count: int
    sha256: str
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, file_id: _Optional[str] = ..., tenant: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ..., status: _Optional[_Union[File.Status, str]] = ..., status_details: _Optional[str] = ..., size_bytes: _Optional[int] = ..., line_count: _Optional[int] = ..., sha256: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UploadFileRequest(_message.Message):
    __slots__ = ("header", "data", "end")
    class Header(_message.Message):
        __slots__ = ("request_id", "tenant", "filename", "purpose", "expires_after_seconds", "idempotency_key")
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        FILENAME_FIELD_NUMBER: _ClassVar[int]
        PURPOSE_FIELD_NUMBER: _ClassVar[int]
        EXPIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
        IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
        request_id: str
        tenant: str
        filename: str
        purpose: str
        expires_after_seconds: int
        idempotency_key: str
        def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ..., expires_after_seconds: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...
    class End(_message.Message):
        __slots__ = ("sha256", "size_bytes", "purpose", "expires_after_seconds")
        SHA256_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        PURPOSE_FIELD_NUMBER: _ClassVar[int]
        EXPIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
        sha256: str
        size_bytes: int
        purpose: str
        expires_after_seconds: int
        def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., purpose: _Optional[str] = ..., expires_after_seconds: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: UploadFileRequest.Header
    data: bytes
    end: UploadFileRequest.End
    def __init__(self, header: _Optional[_Union[UploadFileRequest.Header, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[UploadFileRequest.End, _Mapping]] = ...) -> None: ...

class UploadFileResponse(_message.Message):
    __slots__ = ("file", "replayed")
    FILE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    file: File
    replayed: bool
    def __init__(self, file: _Optional[_Union[File, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class DownloadFileRequest(_message.Message):
    __slots__ = ("file_id", "tenant", "offset", "length")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tenant: str
    offset: int
    length: int
    def __init__(self, file_id: _Optional[str] = ..., tenant: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class DownloadFileResponse(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: File
    data: bytes
    def __init__(self, file: _Optional[_Union[File, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetFileRequest(_message.Message):
    __slots__ = ("file_id", "tenant")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tenant: str
    def __init__(self, file_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetFileResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: File
    def __init__(self, file: _Optional[_Union[File, _Mapping]] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("tenant", "purpose", "page_size", "page_token", "ascending")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ASCENDING_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    purpose: str
    page_size: int
    page_token: str
    ascending: bool
    def __init__(self, tenant: _Optional[str] = ..., purpose: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., ascending: _Optional[bool] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("files", "next_page_token")
    FILES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[File]
    next_page_token: str
    def __init__(self, files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteFileRequest(_message.Message):
    __slots__ = ("file_id", "tenant")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tenant: str
    def __init__(self, file_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class DeleteFileResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: File
    def __init__(self, file: _Optional[_Union[File, _Mapping]] = ...) -> None: ...

class AdoptBlobRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "blob_key", "filename", "purpose", "size_bytes", "line_count", "sha256", "expires_after_seconds", "file_id", "holder")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    blob_key: str
    filename: str
    purpose: str
    size_bytes: int
    line_count: int
    sha256: str
    expires_after_seconds: int
    file_id: str
    holder: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., blob_key: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ..., size_bytes: _Optional[int] = ..., line_count: _Optional[int] = ..., sha256: _Optional[str] = ..., expires_after_seconds: _Optional[int] = ..., file_id: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class AdoptBlobResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: File
    def __init__(self, file: _Optional[_Union[File, _Mapping]] = ...) -> None: ...

class HoldBlobRequest(_message.Message):
    __slots__ = ("file_id", "tenant", "holder")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tenant: str
    holder: str
    def __init__(self, file_id: _Optional[str] = ..., tenant: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class HoldBlobResponse(_message.Message):
    __slots__ = ("blob_key", "file")
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    blob_key: str
    file: File
    def __init__(self, blob_key: _Optional[str] = ..., file: _Optional[_Union[File, _Mapping]] = ...) -> None: ...

class ReleaseBlobRequest(_message.Message):
    __slots__ = ("holder",)
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    def __init__(self, holder: _Optional[str] = ...) -> None: ...

class ReleaseBlobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdoptBlobsRequest(_message.Message):
    __slots__ = ("blobs",)
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[AdoptBlobRequest]
    def __init__(self, blobs: _Optional[_Iterable[_Union[AdoptBlobRequest, _Mapping]]] = ...) -> None: ...

class AdoptBlobsResponse(_message.Message):
    __slots__ = ("adopted",)
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    adopted: _containers.RepeatedCompositeFieldContainer[AdoptBlobResponse]
    def __init__(self, adopted: _Optional[_Iterable[_Union[AdoptBlobResponse, _Mapping]]] = ...) -> None: ...

class HoldBlobsRequest(_message.Message):
    __slots__ = ("holds",)
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[HoldBlobRequest]
    def __init__(self, holds: _Optional[_Iterable[_Union[HoldBlobRequest, _Mapping]]] = ...) -> None: ...

class HoldBlobsResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HoldBlobResponse]
    def __init__(self, held: _Optional[_Iterable[_Union[HoldBlobResponse, _Mapping]]] = ...) -> None: ...

class ReleaseBlobsRequest(_message.Message):
    __slots__ = ("holders",)
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, holders: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseBlobsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
