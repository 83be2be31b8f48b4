"""What an adapter that must never fail says instead: which of its promises it cannot keep at the moment."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True):
    """Empty notes mean that all is well. `lost` counts what is gone for good, `waiting` what may still be saved."""

    notes: tuple[str, ...] = ()
    lost: int = 0
    waiting: int = 0

    @property
    def ok(self) -> bool:
        return not self.notes

    def __add__(self, other: Health) -> Health:
        return Health(self.notes + other.notes, self.lost + other.lost, self.waiting + other.waiting)


WELL = Health()
