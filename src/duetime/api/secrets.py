"""Secrets of this installation, made when they are first needed."""

from __future__ import annotations

from secrets import token_urlsafe
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from duetime.storage.access.secrets import find_secret, keep_secret
from duetime.storage.store import Store

if TYPE_CHECKING:
    from duetime.app import Duetime


class InstallationSecrets:
    """Random keys, one for each purpose, the same in all processes on one database.

    There is no default: no installation accepts what another one has signed.
    """

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._known: WeakKeyDictionary[Store, dict[str, bytes]] = WeakKeyDictionary()

    async def get(self, purpose: str) -> bytes:
        """Return the key for a purpose such as `csrf`; the first call stores it."""
        store = await self._app.store()
        known = self._known.setdefault(store, {})
        if purpose not in known:
            found = await store.transact(find_secret(store.dialect, purpose), reads=True)
            if found is None:
                keep = keep_secret(store.dialect, purpose, token_urlsafe(32))
                found = await store.transact(keep)
            known[purpose] = found.encode()
        return known[purpose]
