import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from haywain.files.v1 import files_pb2 as _files_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Upload(_message.Message):
    __slots__ = ("upload_id", "tenant", "filename", "purpose", "mime_type", "size_bytes", "status", "create_time", "expire_time", "file")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[Upload.Status]
        STATUS_PENDING: _ClassVar[Upload.Status]
        STATUS_COMPLETED: _ClassVar[Upload.Status]
        STATUS_CANCELLED: _ClassVar[Upload.Status]
        STATUS_EXPIRED: _ClassVar[Upload.Status]
    STATUS_UNSPECIFIED: Upload.Status
    STATUS_PENDING: Upload.Status
    STATUS_COMPLETED: Upload.Status
    STATUS_CANCELLED: Upload.Status
    STATUS_EXPIRED: Upload.Status
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    tenant: str
    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    status: Upload.Status
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    file: _files_pb2.File
    def __init__(self, upload_id: _Optional[str] = ..., tenant: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ..., mime_type: _Optional[str] = ..., size_bytes: _Optional[int] = ..., status: _Optional[_Union[Upload.Status, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., file: _Optional[_Union[_files_pb2.File, _Mapping]] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("part_id", "upload_id", "size_bytes", "create_time")
    PART_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    part_id: str
    upload_id: str
    size_bytes: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, part_id: _Optional[str] = ..., upload_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateUploadRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "filename", "purpose", "mime_type", "size_bytes", "expires_after_seconds", "idempotency_key")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    expires_after_seconds: int
    idempotency_key: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ..., mime_type: _Optional[str] = ..., size_bytes: _Optional[int] = ..., expires_after_seconds: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CreateUploadResponse(_message.Message):
    __slots__ = ("upload", "replayed")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    replayed: bool
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class AddUploadPartRequest(_message.Message):
    __slots__ = ("header", "data", "end")
    class Header(_message.Message):
        __slots__ = ("upload_id", "tenant", "idempotency_key")
        UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
        upload_id: str
        tenant: str
        idempotency_key: str
        def __init__(self, upload_id: _Optional[str] = ..., tenant: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...
    class End(_message.Message):
        __slots__ = ("size_bytes",)
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        size_bytes: int
        def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: AddUploadPartRequest.Header
    data: bytes
    end: AddUploadPartRequest.End
    def __init__(self, header: _Optional[_Union[AddUploadPartRequest.Header, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[AddUploadPartRequest.End, _Mapping]] = ...) -> None: ...

class AddUploadPartResponse(_message.Message):
    __slots__ = ("part", "replayed")
    PART_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    part: UploadPart
    replayed: bool
    def __init__(self, part: _Optional[_Union[UploadPart, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class CompleteUploadRequest(_message.Message):
    __slots__ = ("upload_id", "tenant", "part_ids", "md5", "idempotency_key")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PART_IDS_FIELD_NUMBER: _ClassVar[int]
    MD5_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    tenant: str
    part_ids: _containers.RepeatedScalarFieldContainer[str]
    md5: str
    idempotency_key: str
    def __init__(self, upload_id: _Optional[str] = ..., tenant: _Optional[str] = ..., part_ids: _Optional[_Iterable[str]] = ..., md5: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CompleteUploadResponse(_message.Message):
    __slots__ = ("upload", "replayed")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    replayed: bool
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class CancelUploadRequest(_message.Message):
    __slots__ = ("upload_id", "tenant", "idempotency_key")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    tenant: str
    idempotency_key: str
    def __init__(self, upload_id: _Optional[str] = ..., tenant: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CancelUploadResponse(_message.Message):
    __slots__ = ("upload", "replayed")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    replayed: bool
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("upload_id", "tenant")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    tenant: str
    def __init__(self, upload_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...
