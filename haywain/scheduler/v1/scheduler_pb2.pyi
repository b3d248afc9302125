import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from haywain.engine.v1 import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Shard(_message.Message):
    __slots__ = ("model", "first_row", "row_count")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    model: str
    first_row: int
    row_count: int
    def __init__(self, model: _Optional[str] = ..., first_row: _Optional[int] = ..., row_count: _Optional[int] = ...) -> None: ...

class RowCounts(_message.Message):
    __slots__ = ("total", "completed", "failed")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    total: int
    completed: int
    failed: int
    def __init__(self, total: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class SubmitBatchRequest(_message.Message):
    __slots__ = ("batch_id", "tenant", "endpoint", "lane", "expire_time", "input_blob_key", "index_blob_key", "shards", "row_count", "body_defaults", "deterministic", "rejected_blob_key", "rejected_count", "index", "pack")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    INPUT_BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    BODY_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    REJECTED_BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    REJECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    tenant: str
    endpoint: str
    lane: _engine_pb2.Lane
    expire_time: _timestamp_pb2.Timestamp
    input_blob_key: str
    index_blob_key: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    row_count: int
    body_defaults: bytes
    deterministic: bool
    rejected_blob_key: str
    rejected_count: int
    index: bytes
    pack: bool
    def __init__(self, batch_id: _Optional[str] = ..., tenant: _Optional[str] = ..., endpoint: _Optional[str] = ..., lane: _Optional[_Union[_engine_pb2.Lane, str]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., input_blob_key: _Optional[str] = ..., index_blob_key: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., row_count: _Optional[int] = ..., body_defaults: _Optional[bytes] = ..., deterministic: _Optional[bool] = ..., rejected_blob_key: _Optional[str] = ..., rejected_count: _Optional[int] = ..., index: _Optional[bytes] = ..., pack: _Optional[bool] = ...) -> None: ...

class SubmitBatchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ("batch_id", "state", "counts", "usage", "queued", "running", "rows_per_second", "tokens_per_second", "start_time", "waiting_reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Progress.State]
        STATE_ACTIVE: _ClassVar[Progress.State]
        STATE_ENDED: _ClassVar[Progress.State]
        STATE_SEALED: _ClassVar[Progress.State]
    STATE_UNSPECIFIED: Progress.State
    STATE_ACTIVE: Progress.State
    STATE_ENDED: Progress.State
    STATE_SEALED: Progress.State
    class WaitingReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WAITING_REASON_UNSPECIFIED: _ClassVar[Progress.WaitingReason]
        WAITING_REASON_QUEUED: _ClassVar[Progress.WaitingReason]
        WAITING_REASON_MODEL_NOT_AVAILABLE: _ClassVar[Progress.WaitingReason]
        WAITING_REASON_LEASE_UNAVAILABLE: _ClassVar[Progress.WaitingReason]
        WAITING_REASON_CAPACITY: _ClassVar[Progress.WaitingReason]
    WAITING_REASON_UNSPECIFIED: Progress.WaitingReason
    WAITING_REASON_QUEUED: Progress.WaitingReason
    WAITING_REASON_MODEL_NOT_AVAILABLE: Progress.WaitingReason
    WAITING_REASON_LEASE_UNAVAILABLE: Progress.WaitingReason
    WAITING_REASON_CAPACITY: Progress.WaitingReason
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    WAITING_REASON_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    state: Progress.State
    counts: RowCounts
    usage: _engine_pb2.Usage
    queued: int
    running: int
    rows_per_second: float
    tokens_per_second: float
    start_time: _timestamp_pb2.Timestamp
    waiting_reason: Progress.WaitingReason
    def __init__(self, batch_id: _Optional[str] = ..., state: _Optional[_Union[Progress.State, str]] = ..., counts: _Optional[_Union[RowCounts, _Mapping]] = ..., usage: _Optional[_Union[_engine_pb2.Usage, _Mapping]] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., rows_per_second: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waiting_reason: _Optional[_Union[Progress.WaitingReason, str]] = ...) -> None: ...

class GetProgressRequest(_message.Message):
    __slots__ = ("batch_ids",)
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetProgressResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class WatchProgressRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchProgressResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class StopBatchRequest(_message.Message):
    __slots__ = ("batch_id", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[StopBatchRequest.Reason]
        REASON_CANCELLED: _ClassVar[StopBatchRequest.Reason]
        REASON_EXPIRED: _ClassVar[StopBatchRequest.Reason]
        REASON_FAILED: _ClassVar[StopBatchRequest.Reason]
    REASON_UNSPECIFIED: StopBatchRequest.Reason
    REASON_CANCELLED: StopBatchRequest.Reason
    REASON_EXPIRED: StopBatchRequest.Reason
    REASON_FAILED: StopBatchRequest.Reason
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    reason: StopBatchRequest.Reason
    def __init__(self, batch_id: _Optional[str] = ..., reason: _Optional[_Union[StopBatchRequest.Reason, str]] = ...) -> None: ...

class StopBatchResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class SealBatchRequest(_message.Message):
    __slots__ = ("batch_id",)
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    def __init__(self, batch_id: _Optional[str] = ...) -> None: ...

class SealedBlob(_message.Message):
    __slots__ = ("blob_key", "size_bytes", "line_count", "sha256")
    BLOB_KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    blob_key: str
    size_bytes: int
    line_count: int
    sha256: str
    def __init__(self, blob_key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., line_count: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class SealBatchResponse(_message.Message):
    __slots__ = ("output", "error", "counts", "usage")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    output: SealedBlob
    error: SealedBlob
    counts: RowCounts
    usage: _engine_pb2.Usage
    def __init__(self, output: _Optional[_Union[SealedBlob, _Mapping]] = ..., error: _Optional[_Union[SealedBlob, _Mapping]] = ..., counts: _Optional[_Union[RowCounts, _Mapping]] = ..., usage: _Optional[_Union[_engine_pb2.Usage, _Mapping]] = ...) -> None: ...

class ForgetBatchRequest(_message.Message):
    __slots__ = ("batch_id",)
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    def __init__(self, batch_id: _Optional[str] = ...) -> None: ...

class ForgetBatchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadResultsRequest(_message.Message):
    __slots__ = ("batch_id", "after_line")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_LINE_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    after_line: int
    def __init__(self, batch_id: _Optional[str] = ..., after_line: _Optional[int] = ...) -> None: ...

class ReadResultsResponse(_message.Message):
    __slots__ = ("data", "line")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    line: int
    def __init__(self, data: _Optional[bytes] = ..., line: _Optional[int] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("tenant", "endpoint", "model", "request", "stream", "lease_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    endpoint: str
    model: str
    request: bytes
    stream: bool
    lease_id: str
    def __init__(self, tenant: _Optional[str] = ..., endpoint: _Optional[str] = ..., model: _Optional[str] = ..., request: _Optional[bytes] = ..., stream: _Optional[bool] = ..., lease_id: _Optional[str] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("delta", "result")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    delta: _engine_pb2.SequenceDelta
    result: _engine_pb2.SequenceResult
    def __init__(self, delta: _Optional[_Union[_engine_pb2.SequenceDelta, _Mapping]] = ..., result: _Optional[_Union[_engine_pb2.SequenceResult, _Mapping]] = ...) -> None: ...

class RegisterEngineRequest(_message.Message):
    __slots__ = ("engine", "load")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    load: _engine_pb2.Load
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., load: _Optional[_Union[_engine_pb2.Load, _Mapping]] = ...) -> None: ...

class RegisterEngineResponse(_message.Message):
    __slots__ = ("heartbeat_ms",)
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_ms: int
    def __init__(self, heartbeat_ms: _Optional[int] = ...) -> None: ...

class DrainEngineRequest(_message.Message):
    __slots__ = ("engine_id", "local")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    local: bool
    def __init__(self, engine_id: _Optional[str] = ..., local: _Optional[bool] = ...) -> None: ...

class DrainEngineResponse(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: EngineStatus
    def __init__(self, engine: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class AddEngineRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class AddEngineResponse(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: EngineStatus
    def __init__(self, engine: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class RemoveEngineRequest(_message.Message):
    __slots__ = ("engine_id", "local")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    local: bool
    def __init__(self, engine_id: _Optional[str] = ..., local: _Optional[bool] = ...) -> None: ...

class RemoveEngineResponse(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: EngineStatus
    def __init__(self, engine: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("engine", "state", "active", "credits", "ended", "standing", "input_tokens_per_second", "cached_tokens_per_second", "output_tokens_per_second", "quarantine_reason", "quarantine_until_time", "slow", "load")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[EngineStatus.State]
        STATE_CONNECTING: _ClassVar[EngineStatus.State]
        STATE_READY: _ClassVar[EngineStatus.State]
        STATE_DRAINING: _ClassVar[EngineStatus.State]
        STATE_LOST: _ClassVar[EngineStatus.State]
        STATE_QUARANTINED: _ClassVar[EngineStatus.State]
    STATE_UNSPECIFIED: EngineStatus.State
    STATE_CONNECTING: EngineStatus.State
    STATE_READY: EngineStatus.State
    STATE_DRAINING: EngineStatus.State
    STATE_LOST: EngineStatus.State
    STATE_QUARANTINED: EngineStatus.State
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_REASON_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    state: EngineStatus.State
    active: int
    credits: int
    ended: int
    standing: bool
    input_tokens_per_second: float
    cached_tokens_per_second: float
    output_tokens_per_second: float
    quarantine_reason: str
    quarantine_until_time: _timestamp_pb2.Timestamp
    slow: bool
    load: _engine_pb2.Load
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., state: _Optional[_Union[EngineStatus.State, str]] = ..., active: _Optional[int] = ..., credits: _Optional[int] = ..., ended: _Optional[int] = ..., standing: _Optional[bool] = ..., input_tokens_per_second: _Optional[float] = ..., cached_tokens_per_second: _Optional[float] = ..., output_tokens_per_second: _Optional[float] = ..., quarantine_reason: _Optional[str] = ..., quarantine_until_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., slow: _Optional[bool] = ..., load: _Optional[_Union[_engine_pb2.Load, _Mapping]] = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ("local",)
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    local: bool
    def __init__(self, local: _Optional[bool] = ...) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines", "silent")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[EngineStatus]
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, engines: _Optional[_Iterable[_Union[EngineStatus, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[_engine_pb2.ModelDescription]
    def __init__(self, models: _Optional[_Iterable[_Union[_engine_pb2.ModelDescription, _Mapping]]] = ...) -> None: ...

class GetPoolStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPoolStatusResponse(_message.Message):
    __slots__ = ("intake_rows", "intake_capacity", "slots_active", "slots_capacity", "active_batches", "engines")
    INTAKE_ROWS_FIELD_NUMBER: _ClassVar[int]
    INTAKE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    intake_rows: int
    intake_capacity: int
    slots_active: int
    slots_capacity: int
    active_batches: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineStatus]
    def __init__(self, intake_rows: _Optional[int] = ..., intake_capacity: _Optional[int] = ..., slots_active: _Optional[int] = ..., slots_capacity: _Optional[int] = ..., active_batches: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineStatus, _Mapping]]] = ...) -> None: ...

class SubmitBatchesRequest(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[SubmitBatchRequest]
    def __init__(self, batches: _Optional[_Iterable[_Union[SubmitBatchRequest, _Mapping]]] = ...) -> None: ...

class SubmitBatchesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SealBatchesRequest(_message.Message):
    __slots__ = ("batch_ids",)
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SealBatchesResponse(_message.Message):
    __slots__ = ("sealed",)
    SEALED_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedCompositeFieldContainer[SealBatchResponse]
    def __init__(self, sealed: _Optional[_Iterable[_Union[SealBatchResponse, _Mapping]]] = ...) -> None: ...

class ForgetBatchesRequest(_message.Message):
    __slots__ = ("batch_ids",)
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetBatchesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelLease(_message.Message):
    __slots__ = ("lease_id", "model", "holder", "metadata", "state", "ttl_seconds", "create_time", "expire_time", "end_time", "batch_id")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ModelLease.State]
        STATE_ACTIVE: _ClassVar[ModelLease.State]
        STATE_EXPIRED: _ClassVar[ModelLease.State]
        STATE_RELEASED: _ClassVar[ModelLease.State]
    STATE_UNSPECIFIED: ModelLease.State
    STATE_ACTIVE: ModelLease.State
    STATE_EXPIRED: ModelLease.State
    STATE_RELEASED: ModelLease.State
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    model: str
    holder: str
    metadata: _containers.ScalarMap[str, str]
    state: ModelLease.State
    ttl_seconds: int
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    batch_id: str
    def __init__(self, lease_id: _Optional[str] = ..., model: _Optional[str] = ..., holder: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., state: _Optional[_Union[ModelLease.State, str]] = ..., ttl_seconds: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., batch_id: _Optional[str] = ...) -> None: ...

class AcquireModelLeaseRequest(_message.Message):
    __slots__ = ("tenant", "model", "ttl_seconds", "holder", "metadata", "request_id", "idempotency_key", "fingerprint")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model: str
    ttl_seconds: int
    holder: str
    metadata: _containers.ScalarMap[str, str]
    request_id: str
    idempotency_key: str
    fingerprint: str
    def __init__(self, tenant: _Optional[str] = ..., model: _Optional[str] = ..., ttl_seconds: _Optional[int] = ..., holder: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., request_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class AcquireModelLeaseResponse(_message.Message):
    __slots__ = ("lease", "replayed")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    lease: ModelLease
    replayed: bool
    def __init__(self, lease: _Optional[_Union[ModelLease, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class GetModelLeaseRequest(_message.Message):
    __slots__ = ("tenant", "lease_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    lease_id: str
    def __init__(self, tenant: _Optional[str] = ..., lease_id: _Optional[str] = ...) -> None: ...

class GetModelLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ModelLease
    def __init__(self, lease: _Optional[_Union[ModelLease, _Mapping]] = ...) -> None: ...

class ListModelLeasesRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ModelLease]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[ModelLease, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RenewModelLeaseRequest(_message.Message):
    __slots__ = ("tenant", "lease_id", "ttl_seconds")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    lease_id: str
    ttl_seconds: int
    def __init__(self, tenant: _Optional[str] = ..., lease_id: _Optional[str] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class RenewModelLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ModelLease
    def __init__(self, lease: _Optional[_Union[ModelLease, _Mapping]] = ...) -> None: ...

class ReleaseModelLeaseRequest(_message.Message):
    __slots__ = ("tenant", "lease_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    lease_id: str
    def __init__(self, tenant: _Optional[str] = ..., lease_id: _Optional[str] = ...) -> None: ...

class ReleaseModelLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ModelLease
    def __init__(self, lease: _Optional[_Union[ModelLease, _Mapping]] = ...) -> None: ...

class HandModelLeaseRequest(_message.Message):
    __slots__ = ("tenant", "lease_id", "batch_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    lease_id: str
    batch_id: str
    def __init__(self, tenant: _Optional[str] = ..., lease_id: _Optional[str] = ..., batch_id: _Optional[str] = ...) -> None: ...

class HandModelLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ModelLease
    def __init__(self, lease: _Optional[_Union[ModelLease, _Mapping]] = ...) -> None: ...
