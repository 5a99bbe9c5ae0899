"""Changes to what is not ours, each with its way back."""

import contextlib
from collections.abc import MutableMapping
from typing import Any

_ABSENT = object()


class Undo(contextlib.ExitStack):
    """Closing it takes all changes back, the last one first."""

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """An attribute of the object itself, not one that it inherits."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self.callback(self._restore_attribute, owner, name, before)

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        before = mapping.get(key, _ABSENT)
        mapping[key] = value
        self.callback(self._restore_item, mapping, key, before)

    def added_attribute(self, owner: Any, name: str) -> None:
        """An attribute that others have added for us."""
        self.callback(self._restore_attribute, owner, name, _ABSENT)

    @staticmethod
    def _restore_attribute(owner: Any, name: str, before: Any) -> None:
        if before is not _ABSENT:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)

    @staticmethod
    def _restore_item(mapping: MutableMapping[Any, Any], key: Any, before: Any) -> None:
        if before is _ABSENT:
            mapping.pop(key, None)
        else:
            mapping[key] = before
