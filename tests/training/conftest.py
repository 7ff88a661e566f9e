"""The embedded model's folder, and the one line that refuses a model, for tests of where models come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from canaries import tiny_model

from canary_mlflow.training.config import ModelConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.models import model_folder


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return model_folder(tiny_model())


@pytest.fixture(scope="session")
def refusal() -> Callable[[ModelConfig], str]:
    """What is said of a model that cannot be had."""

    def of(model: ModelConfig) -> str:
        with pytest.raises(SetupError) as caught:
            model_folder(model)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return of
