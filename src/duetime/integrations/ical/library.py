"""The library that reads and writes iCalendar: optional, and imported on first use."""

from __future__ import annotations

from types import ModuleType

from duetime.errors import InvalidInput


def icalendar() -> ModuleType:
    """Return the library, or say how to install it."""
    try:
        import icalendar as library
    except ImportError:
        raise InvalidInput(
            "iCalendar files require an extra package: pip install 'duetime[ical]'."
        ) from None
    module: ModuleType = library
    return module
