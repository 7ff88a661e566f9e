"""What Hydra reads and merges for one choice of options is kept: half a second of CPU each time it composes. So is what
it copies or makes without ever using it: a quarter of the rest.

Overrides of values, their checks and what the project makes of them are not kept. A file that changed is read anew.
Where CANARY_TEST_CONFIGS is `made`, Hydra makes each configuration.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

VARIABLE = "CANARY_TEST_CONFIGS"
KEPT: dict[tuple[Any, ...], bytes] = {}
OWN = "/own_"  # what the command line puts into Hydra's store for a policy file of the user's own


def install() -> None:
    """Have Hydra keep them in this process and in those that it forks."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository

    load, merge = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list

    def load_config(self: Any, config_path: str) -> Any:
        return kept(lambda: load(self, config_path), "loaded", file_of(self, config_path))

    def compose(self: Any, defaults: list[Any], repo: Any) -> Any:
        files = tuple(file_of(repo.delegate, one.config_path) for one in defaults)
        options = tuple((one.package, one.is_self, one.primary) for one in defaults)
        return kept(lambda: merge(self, defaults, repo), "merged", files, options)

    use_no_copies()
    ConfigRepository.load_config = load_config
    ConfigLoaderImpl._compose_config_from_defaults_list = compose


def use_no_copies() -> None:
    """A repository's sources, the store of all schemas among them, are only read, and the choices are only looked up
    for an interpolated option."""
    from hydra._internal import defaults_list
    from hydra._internal.config_repository import ConfigRepository

    choices = defaults_list._create_interpolation_map

    def choices_asked_for(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        asked = any(one.is_interpolation() for one in defaults)
        return choices(overrides, defaults, self_added) if asked else None

    defaults_list._create_interpolation_map = choices_asked_for
    ConfigRepository.__deepcopy__ = lambda self, memo: copy.copy(self)


def kept(make: Callable[[], Any], *key: Any) -> Any:
    """A copy of what was made for this key."""
    if os.environ.get(VARIABLE) == "made" or OWN in repr(key):
        return make()
    if key not in KEPT:
        KEPT[key] = pickle.dumps(make())
    return pickle.loads(KEPT[key])


def file_of(repository: Any, config: str) -> tuple[Any, ...]:
    """Which file it is read from, as it is now; types stay as they are while a process lives."""
    from hydra.core.object_type import ObjectType

    source = repository._find_object_source(config_path=config, object_type=ObjectType.CONFIG)
    if source is None or source.scheme() != "file":
        return config, getattr(source, "path", None)
    path = os.path.realpath(os.path.join(source.path, source._normalize_file_name(config)))
    found = os.stat(path)
    return config, path, found.st_ino, found.st_mtime_ns, found.st_size
