"""Which packages there are is looked up once: Accelerate reads the metadata of PEFT three times in each step."""

from __future__ import annotations

from functools import cache


def install() -> None:
    """Have Accelerate keep it in this process and in those that it forks."""
    from accelerate.utils import imports

    imports._is_package_available = cache(imports._is_package_available)
