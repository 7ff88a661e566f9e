"""Loading without the garbage collector leaves it enabled afterwards."""

from __future__ import annotations

import gc

import pytest

from canary_mlflow.loading import without_collecting


def test_cycles_are_collected_again_after_loading_also_where_it_failed() -> None:
    with without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collecting():
        raise ImportError("torch")
    assert gc.isenabled()
