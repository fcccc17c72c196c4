"""profile.proto of pprof as protobuf descriptors: an independent reader for what the exporter encodes by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {"int64": 3, "uint64": 4, "bool": 8, "string": 9}
#: message -> field -> (number, type, repeated)
_MESSAGES = {
    "ValueType": {"type": (1, "int64", 0), "unit": (2, "int64", 0)},
    "Label": {"key": (1, "int64", 0), "str": (2, "int64", 0), "num": (3, "int64", 0), "num_unit": (4, "int64", 0)},
    "Sample": {"location_id": (1, "uint64", 1), "value": (2, "int64", 1), "label": (3, "Label", 1)},
    "Mapping": {
        "id": (1, "uint64", 0),
        "memory_start": (2, "uint64", 0),
        "memory_limit": (3, "uint64", 0),
        "file_offset": (4, "uint64", 0),
        "filename": (5, "int64", 0),
        "build_id": (6, "int64", 0),
        "has_functions": (7, "bool", 0),
    },
    "Line": {"function_id": (1, "uint64", 0), "line": (2, "int64", 0)},
    "Location": {
        "id": (1, "uint64", 0),
        "mapping_id": (2, "uint64", 0),
        "address": (3, "uint64", 0),
        "line": (4, "Line", 1),
        "is_folded": (5, "bool", 0),
    },
    "Function": {
        "id": (1, "uint64", 0),
        "name": (2, "int64", 0),
        "system_name": (3, "int64", 0),
        "filename": (4, "int64", 0),
        "start_line": (5, "int64", 0),
    },
    "Profile": {
        "sample_type": (1, "ValueType", 1),
        "sample": (2, "Sample", 1),
        "mapping": (3, "Mapping", 1),
        "location": (4, "Location", 1),
        "function": (5, "Function", 1),
        "string_table": (6, "string", 1),
        "drop_frames": (7, "int64", 0),
        "keep_frames": (8, "int64", 0),
        "time_nanos": (9, "int64", 0),
        "duration_nanos": (10, "int64", 0),
        "period_type": (11, "ValueType", 0),
        "period": (12, "int64", 0),
        "comment": (13, "int64", 1),
        "default_sample_type": (14, "int64", 0),
    },
}


def _profile() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = 11, f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


Profile: Any = _profile()
