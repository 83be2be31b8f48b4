"""JSON of anything that is recorded. A file name need not be text; what is not text is kept as its escape."""

from __future__ import annotations

from typing import Any

import msgspec


def encode(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(msgspec.to_builtins(value)))


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_clean(key): _clean(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_clean(inner) for inner in value]
        case _:
            return value
