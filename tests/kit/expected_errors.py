"""Assertions about errors of Galileo: by class, `kind` and `details`, never by their prose."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from galileo.errors import GalileoError

Error = TypeVar("Error", bound=GalileoError)


def raises(cls: type[Error], **details: Any) -> pytest.RaisesExc[Error]:
    """As `pytest.raises`, for an error of exactly this class with these details among others."""

    def check(error: Error) -> bool:
        assert type(error) is cls, f"expected {cls.__name__}, got {error!r}"
        given = {name: error.details.get(name) for name in details}
        assert given == details, f"expected {details}, got {error.details} of {error!r}"
        return True

    return pytest.raises(cls, check=check)
