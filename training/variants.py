"""The variants of a canary: the same work with accumulation, adapters, packing, checkpoints …, each from its file in
conf/variant. Nothing heavy is imported here."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import read_yaml
from canary_mlflow.policies import conf_dir, option_names
from canary_mlflow.training.config import CanaryConfig, VariantConfig

GROUPS = ("train", "algo", "adapter")  # what a trainer is built from; the other groups define which canary this is


def variants_of(config: CanaryConfig) -> list[CanaryConfig]:
    """The configuration of each variant that the tier asks for and the algorithm has. Raises UsageError."""
    found = map(load, config.tier.variants)
    return [changed(config, one) for one in found if not one.algorithms or config.algo.name in one.algorithms]


def load(name: str) -> VariantConfig:
    """The variant of a file in conf/variant. Raises UsageError if the file is missing or cannot be read."""
    if name not in (valid := option_names("variant")):
        raise UsageError(f"tier.variants: found {name!r}; expected some of {', '.join(valid)}")
    try:
        given = OmegaConf.merge(OmegaConf.structured(VariantConfig), read_yaml(conf_dir() / "variant" / f"{name}.yaml"))
        variant = OmegaConf.to_object(given)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UsageError(f"variant {name}: {str(error).splitlines()[0]}; expected keys of VariantConfig") from error
    assert isinstance(variant, VariantConfig)
    return variant


def changed(config: CanaryConfig, variant: VariantConfig) -> CanaryConfig:
    """The configuration with the variant's values in it. Raises UsageError for keys that it does not have."""
    if wrong := sorted(set(variant.settings) - set(GROUPS)):
        raise UsageError(f"variant {variant.name}: found {', '.join(wrong)}; expected settings of {', '.join(GROUPS)}")
    groups = {group: _merged(config, variant.name, group, values) for group, values in variant.settings.items()}
    return replace(config, variant=variant, **groups)


def _merged(config: CanaryConfig, name: str, group: str, values: Mapping[str, Any]) -> Any:
    try:
        before = OmegaConf.structured(copy.deepcopy(getattr(config, group)))
        return OmegaConf.to_object(OmegaConf.merge(before, values))
    except (OmegaConfBaseException, ValueError) as error:
        raise UsageError(
            f"variant {name}: {str(error).splitlines()[0]}; expected keys and values of {group}"
        ) from error
