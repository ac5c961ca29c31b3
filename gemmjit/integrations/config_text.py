"""A config as a text, which is all that an operator of a framework can carry of it."""

from __future__ import annotations

import json

from gemmjit.config import Config
from gemmjit.kernels import kernel

__all__ = ["from_text", "to_text"]


def to_text(config: Config | str | None) -> str | None:
    """Return the text of a config; the name of a kernel, and None, stay what they are."""
    if isinstance(config, Config):
        return json.dumps({"kernel": config.kernel, **config.to_dict()})
    return config


def from_text(text: str | None) -> Config | str | None:
    """Return the config of a text."""
    if text is None or not text.startswith("{"):
        return text
    values = json.loads(text)
    return kernel(values.pop("kernel")).config_type.from_dict(values)
