"""Pickles, read without running anybody's code: of other classes, only the attributes are kept.

Unpickling calls what the pickle names. Here it may name plain values, zones, and the classes of
one library, for which a stand-in that records its state is made; all else is refused.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from duetime.integrations.importing.found import Untranslatable


class Recorded:
    """The attributes of an object whose class is not here."""

    def __new__(cls, *_: Any) -> Recorded:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        # With slots the state is a pair: the attributes, and the slots.
        for part in state if isinstance(state, tuple) else (state,):
            vars(self).update(part or {})


def read_pickle(data: bytes, *, library: str) -> Any:
    """Return what was pickled, or raise `Untranslatable`."""
    try:
        return _Reader(data, library).load()
    except Untranslatable:
        raise
    except Exception as error:  # noqa: BLE001 - a broken pickle may raise anything
        raise Untranslatable(f"its pickle cannot be read: {error!r:.200}") from None


def _zone(name: str, *_: Any) -> ZoneInfo:
    return ZoneInfo(name)


def _utc() -> ZoneInfo:
    return ZoneInfo("UTC")


class _ZoneInfo:
    """A zone is pickled as a call of `getattr(ZoneInfo, "_unpickle")`."""


def _attribute(owner: Any, name: str) -> Any:
    if owner is _ZoneInfo and name == "_unpickle":
        return _zone
    raise Untranslatable(f"its pickle accesses the attribute {name!r}, which is not allowed")


_PLAIN: dict[tuple[str, str], Any] = {
    ("builtins", "frozenset"): frozenset,
    ("builtins", "getattr"): _attribute,
    ("builtins", "set"): set,
    ("collections", "OrderedDict"): OrderedDict,
    ("datetime", "date"): date,
    ("datetime", "datetime"): datetime,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("decimal", "Decimal"): Decimal,
    ("pytz", "_UTC"): _utc,
    ("pytz", "_p"): _zone,
    ("uuid", "UUID"): UUID,
    ("zoneinfo", "ZoneInfo"): _ZoneInfo,
}


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, library: str) -> None:
        super().__init__(io.BytesIO(data))
        self._library = library

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        if module.split(".")[0] == self._library and name.isidentifier():
            return type(name, (Recorded,), {"__module__": module})
        raise Untranslatable(
            f"its pickle refers to {module}.{name}, which is neither plain data nor part of "
            f"{self._library}, and is not allowed"
        )
