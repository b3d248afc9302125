import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from haywain.engine.v1 import engine_pb2 as _engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as _scheduler_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SamplingDefaults(_message.Message):
    __slots__ = ("max_decoding_length", "max_context_length", "temperature", "top_p", "top_k")
    MAX_DECODING_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    max_decoding_length: int
    max_context_length: int
    temperature: float
    top_p: float
    top_k: int
    def __init__(self, max_decoding_length: _Optional[int] = ..., max_context_length: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...

class LineError(_message.Message):
    __slots__ = ("code", "message", "param", "line")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    line: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("batch_id", "tenant", "endpoint", "model", "input_file_id", "completion_window", "status", "output_file_id", "error_file_id", "errors", "error", "create_time", "in_progress_time", "expire_time", "finalizing_time", "completed_time", "failed_time", "expired_time", "cancelling_time", "cancelled_time", "counts", "usage", "metadata", "priority", "defaults", "progress", "rejected_count")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[Batch.Status]
        STATUS_VALIDATING: _ClassVar[Batch.Status]
        STATUS_FAILED: _ClassVar[Batch.Status]
        STATUS_IN_PROGRESS: _ClassVar[Batch.Status]
        STATUS_FINALIZING: _ClassVar[Batch.Status]
        STATUS_COMPLETED: _ClassVar[Batch.Status]
        STATUS_EXPIRED: _ClassVar[Batch.Status]
        STATUS_CANCELLING: _ClassVar[Batch.Status]
        STATUS_CANCELLED: _ClassVar[Batch.Status]
    STATUS_UNSPECIFIED: Batch.Status
    STATUS_VALIDATING: Batch.Status
    STATUS_FAILED: Batch.Status
    STATUS_IN_PROGRESS: Batch.Status
    STATUS_FINALIZING: Batch.Status
    STATUS_COMPLETED: Batch.Status
    STATUS_EXPIRED: Batch.Status
    STATUS_CANCELLING: Batch.Status
    STATUS_CANCELLED: Batch.Status
    class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PRIORITY_UNSPECIFIED: _ClassVar[Batch.Priority]
        PRIORITY_STANDARD: _ClassVar[Batch.Priority]
        PRIORITY_EXPEDITED: _ClassVar[Batch.Priority]
    PRIORITY_UNSPECIFIED: Batch.Priority
    PRIORITY_STANDARD: Batch.Priority
    PRIORITY_EXPEDITED: Batch.Priority
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FINALIZING_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_TIME_FIELD_NUMBER: _ClassVar[int]
    FAILED_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_TIME_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_TIME_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TIME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    endpoint: str
    model: str
    input_file_id: str
    completion_window: str
    status: Batch.Status
    output_file_id: str
    error_file_id: str
    errors: _containers.RepeatedCompositeFieldContainer[LineError]
    error: LineError
    create_time: _timestamp_pb2.Timestamp
    in_progress_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    finalizing_time: _timestamp_pb2.Timestamp
    completed_time: _timestamp_pb2.Timestamp
    failed_time: _timestamp_pb2.Timestamp
    expired_time: _timestamp_pb2.Timestamp
    cancelling_time: _timestamp_pb2.Timestamp
    cancelled_time: _timestamp_pb2.Timestamp
    counts: _scheduler_pb2.RowCounts
    usage: _engine_pb2.Usage
    metadata: _containers.ScalarMap[str, str]
    priority: Batch.Priority
    defaults: SamplingDefaults
    progress: _scheduler_pb2.Progress
    rejected_count: int
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ..., endpoint: _Optional[str] = ..., model: _Optional[str] = ..., input_file_id: _Optional[str] = ..., completion_window: _Optional[str] = ..., status: _Optional[_Union[Batch.Status, str]] = ..., output_file_id: _Optional[str] = ..., error_file_id: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[LineError, _Mapping]]] = ..., error: _Optional[_Union[LineError, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., in_progress_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finalizing_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expired_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelling_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelled_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., counts: _Optional[_Union[_scheduler_pb2.RowCounts, _Mapping]] = ..., usage: _Optional[_Union[_engine_pb2.Usage, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., priority: _Optional[_Union[Batch.Priority, str]] = ..., defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., progress: _Optional[_Union[_scheduler_pb2.Progress, _Mapping]] = ..., rejected_count: _Optional[int] = ...) -> None: ...

class CreateBatchRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "input_file_id", "endpoint", "completion_window", "metadata", "priority", "defaults", "model", "output_expires_after_seconds", "deterministic", "invalid_rows", "inline_input", "wait_seconds", "pack", "idempotency", "held")
    class InvalidRows(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        INVALID_ROWS_UNSPECIFIED: _ClassVar[CreateBatchRequest.InvalidRows]
        INVALID_ROWS_FAIL: _ClassVar[CreateBatchRequest.InvalidRows]
        INVALID_ROWS_REJECT: _ClassVar[CreateBatchRequest.InvalidRows]
    INVALID_ROWS_UNSPECIFIED: CreateBatchRequest.InvalidRows
    INVALID_ROWS_FAIL: CreateBatchRequest.InvalidRows
    INVALID_ROWS_REJECT: CreateBatchRequest.InvalidRows
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_EXPIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    INVALID_ROWS_FIELD_NUMBER: _ClassVar[int]
    INLINE_INPUT_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: _containers.ScalarMap[str, str]
    priority: Batch.Priority
    defaults: SamplingDefaults
    model: str
    output_expires_after_seconds: int
    deterministic: bool
    invalid_rows: CreateBatchRequest.InvalidRows
    inline_input: bytes
    wait_seconds: float
    pack: bool
    idempotency: Idempotency
    held: bool
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., input_file_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., completion_window: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., priority: _Optional[_Union[Batch.Priority, str]] = ..., defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., model: _Optional[str] = ..., output_expires_after_seconds: _Optional[int] = ..., deterministic: _Optional[bool] = ..., invalid_rows: _Optional[_Union[CreateBatchRequest.InvalidRows, str]] = ..., inline_input: _Optional[bytes] = ..., wait_seconds: _Optional[float] = ..., pack: _Optional[bool] = ..., idempotency: _Optional[_Union[Idempotency, _Mapping]] = ..., held: _Optional[bool] = ...) -> None: ...

class Idempotency(_message.Message):
    __slots__ = ("key", "fingerprint")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    key: str
    fingerprint: str
    def __init__(self, key: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class CreateBatchResponse(_message.Message):
    __slots__ = ("batch", "rejections", "replayed")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    rejections: Rejections
    replayed: bool
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ..., rejections: _Optional[_Union[Rejections, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class CreateBatchesRequest(_message.Message):
    __slots__ = ("creations",)
    CREATIONS_FIELD_NUMBER: _ClassVar[int]
    creations: _containers.RepeatedCompositeFieldContainer[Creation]
    def __init__(self, creations: _Optional[_Iterable[_Union[Creation, _Mapping]]] = ...) -> None: ...

class Creation(_message.Message):
    __slots__ = ("request", "http_request_id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HTTP_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request: CreateBatchRequest
    http_request_id: str
    def __init__(self, request: _Optional[_Union[CreateBatchRequest, _Mapping]] = ..., http_request_id: _Optional[str] = ...) -> None: ...

class CreateBatchesResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CreationOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CreationOutcome, _Mapping]]] = ...) -> None: ...

class CreationOutcome(_message.Message):
    __slots__ = ("created", "error")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    created: CreateBatchResponse
    error: bytes
    def __init__(self, created: _Optional[_Union[CreateBatchResponse, _Mapping]] = ..., error: _Optional[bytes] = ...) -> None: ...

class Rejections(_message.Message):
    __slots__ = ("count", "records", "file_id")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    count: int
    records: _containers.RepeatedCompositeFieldContainer[RejectedRecord]
    file_id: str
    def __init__(self, count: _Optional[int] = ..., records: _Optional[_Iterable[_Union[RejectedRecord, _Mapping]]] = ..., file_id: _Optional[str] = ...) -> None: ...

class RejectedRecord(_message.Message):
    __slots__ = ("error", "custom_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_ID_FIELD_NUMBER: _ClassVar[int]
    error: LineError
    custom_id: str
    def __init__(self, error: _Optional[_Union[LineError, _Mapping]] = ..., custom_id: _Optional[str] = ...) -> None: ...

class GetBatchRequest(_message.Message):
    __slots__ = ("batch_id", "tenant")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class ListBatchesRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListBatchesResponse(_message.Message):
    __slots__ = ("batches", "next_page_token")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    next_page_token: str
    def __init__(self, batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateBatchRequest(_message.Message):
    __slots__ = ("batch_id", "tenant", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class CancelBatchRequest(_message.Message):
    __slots__ = ("batch_id", "tenant")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class AnswerCreationRequest(_message.Message):
    __slots__ = ("request_id", "failed", "tenant", "also")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    failed: bool
    tenant: str
    also: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., failed: _Optional[bool] = ..., tenant: _Optional[str] = ..., also: _Optional[_Iterable[str]] = ...) -> None: ...

class AnswerCreationResponse(_message.Message):
    __slots__ = ("outcome", "batch_id")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[AnswerCreationResponse.Outcome]
        OUTCOME_NOTHING: _ClassVar[AnswerCreationResponse.Outcome]
        OUTCOME_BATCH: _ClassVar[AnswerCreationResponse.Outcome]
    OUTCOME_UNSPECIFIED: AnswerCreationResponse.Outcome
    OUTCOME_NOTHING: AnswerCreationResponse.Outcome
    OUTCOME_BATCH: AnswerCreationResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: AnswerCreationResponse.Outcome
    batch_id: str
    def __init__(self, outcome: _Optional[_Union[AnswerCreationResponse.Outcome, str]] = ..., batch_id: _Optional[str] = ...) -> None: ...

class ReadRejectedRequest(_message.Message):
    __slots__ = ("batch_id", "tenant", "after_line")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AFTER_LINE_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    after_line: int
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ..., after_line: _Optional[int] = ...) -> None: ...

class ReadRejectedResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
