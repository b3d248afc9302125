from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CollectRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CollectResponse(_message.Message):
    __slots__ = ("families",)
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    families: _containers.RepeatedCompositeFieldContainer[Family]
    def __init__(self, families: _Optional[_Iterable[_Union[Family, _Mapping]]] = ...) -> None: ...

class Family(_message.Message):
    __slots__ = ("name", "help", "kind", "samples")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Family.Kind]
        KIND_COUNTER: _ClassVar[Family.Kind]
        KIND_GAUGE: _ClassVar[Family.Kind]
        KIND_HISTOGRAM: _ClassVar[Family.Kind]
    KIND_UNSPECIFIED: Family.Kind
    KIND_COUNTER: Family.Kind
    KIND_GAUGE: Family.Kind
    KIND_HISTOGRAM: Family.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    help: str
    kind: Family.Kind
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, name: _Optional[str] = ..., help: _Optional[str] = ..., kind: _Optional[_Union[Family.Kind, str]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("name", "labels", "value")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ...) -> None: ...
