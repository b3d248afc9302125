import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_UNSPECIFIED: _ClassVar[Lane]
    LANE_INTERACTIVE: _ClassVar[Lane]
    LANE_EXPEDITED: _ClassVar[Lane]
    LANE_STANDARD: _ClassVar[Lane]
LANE_UNSPECIFIED: Lane
LANE_INTERACTIVE: Lane
LANE_EXPEDITED: Lane
LANE_STANDARD: Lane

class Usage(_message.Message):
    __slots__ = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("model", "aliases", "digest", "context_length", "endpoints", "fields", "deterministic", "create_time", "owned_by", "reuses_prefixes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OWNED_BY_FIELD_NUMBER: _ClassVar[int]
    REUSES_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    model: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    context_length: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    fields: _containers.RepeatedScalarFieldContainer[str]
    deterministic: bool
    create_time: _timestamp_pb2.Timestamp
    owned_by: str
    reuses_prefixes: bool
    def __init__(self, model: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., context_length: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., fields: _Optional[_Iterable[str]] = ..., deterministic: _Optional[bool] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., owned_by: _Optional[str] = ..., reuses_prefixes: _Optional[bool] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("engine_id", "incarnation", "backend", "version", "address", "models", "slots")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    incarnation: str
    backend: str
    version: str
    address: str
    models: _containers.RepeatedCompositeFieldContainer[ModelDescription]
    slots: int
    def __init__(self, engine_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., backend: _Optional[str] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelDescription, _Mapping]]] = ..., slots: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "kv_used", "kv_capacity", "step_seconds")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    running: int
    kv_used: int
    kv_capacity: int
    step_seconds: float
    def __init__(self, running: _Optional[int] = ..., kv_used: _Optional[int] = ..., kv_capacity: _Optional[int] = ..., step_seconds: _Optional[float] = ...) -> None: ...

class DescribeEngineRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeEngineResponse(_message.Message):
    __slots__ = ("engine", "load")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    engine: Engine
    load: Load
    def __init__(self, engine: _Optional[_Union[Engine, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("sequence_id", "model", "endpoint", "request", "deadline", "lane", "stream", "attempt", "deterministic", "pack")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    model: str
    endpoint: str
    request: bytes
    deadline: _timestamp_pb2.Timestamp
    lane: Lane
    stream: bool
    attempt: int
    deterministic: bool
    pack: bool
    def __init__(self, sequence_id: _Optional[int] = ..., model: _Optional[str] = ..., endpoint: _Optional[str] = ..., request: _Optional[bytes] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lane: _Optional[_Union[Lane, str]] = ..., stream: _Optional[bool] = ..., attempt: _Optional[int] = ..., deterministic: _Optional[bool] = ..., pack: _Optional[bool] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("sequences", "cancel_sequence_ids")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[Sequence]
    cancel_sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., cancel_sequence_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("code", "message", "param")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class SequenceResult(_message.Message):
    __slots__ = ("sequence_id", "status_code", "body", "usage", "error", "retryable", "queue_ms", "run_ms", "seed", "derived")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_MS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    status_code: int
    body: bytes
    usage: Usage
    error: SequenceError
    retryable: bool
    queue_ms: int
    run_ms: int
    seed: int
    derived: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence_id: _Optional[int] = ..., status_code: _Optional[int] = ..., body: _Optional[bytes] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error: _Optional[_Union[SequenceError, _Mapping]] = ..., retryable: _Optional[bool] = ..., queue_ms: _Optional[int] = ..., run_ms: _Optional[int] = ..., seed: _Optional[int] = ..., derived: _Optional[_Iterable[str]] = ...) -> None: ...

class SequenceDelta(_message.Message):
    __slots__ = ("sequence_id", "body")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    body: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("results", "deltas", "credits")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SequenceResult]
    deltas: _containers.RepeatedCompositeFieldContainer[SequenceDelta]
    credits: int
    def __init__(self, results: _Optional[_Iterable[_Union[SequenceResult, _Mapping]]] = ..., deltas: _Optional[_Iterable[_Union[SequenceDelta, _Mapping]]] = ..., credits: _Optional[int] = ...) -> None: ...
