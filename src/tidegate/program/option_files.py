"""Option files: a YAML or TOML file as the mapping that `Options.with_values` takes.

The environment reads them in the user's process. Every failure is a `ConfigurationError` that names the file, and the
line if the parser knows it.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from tidegate.core.errors import ConfigurationError
from tidegate.core.options import Options
from tidegate.core.words import kind_of


def read_options_file(path: str | os.PathLike[str]) -> dict[str, object]:
    """The content of a ``.yaml``, ``.yml`` or ``.toml`` file; its keys stay dotted or nested."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in (".yaml", ".yml", ".toml"):
        raise ConfigurationError(
            f"option file {file}: its name must end in .yaml, .yml or .toml, not {suffix!r}."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise ConfigurationError(f"option file {file} cannot be read: {reason}") from reason
    content = _parse_toml(text, file) if suffix == ".toml" else _parse_yaml(text, file)
    if content is None:  # an empty YAML file sets nothing
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"option file {file} must hold keys and values (parallelism: 2), not {kind_of(content)}."
        )
    return content


def options_from_file(path: str | os.PathLike[str], under: Options | None = None) -> Options:
    """The options of a file over those of ``under`` (default: the defaults)."""
    return (under or Options()).with_values(read_options_file(path), os.fspath(path))


def _parse_toml(text: str, file: Path) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise ConfigurationError(f"option file {file} is not TOML: {reason}") from reason


def _parse_yaml(text: str, file: Path) -> object:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(root, file)
        return yaml.safe_load(text)
    except yaml.YAMLError as reason:
        raise ConfigurationError(f"option file {file} is not YAML: {reason}") from reason


def _refuse_repeated_keys(node: Any, file: Path) -> None:
    """PyYAML silently keeps the last of two equal keys; in a settings file that is refused."""
    if getattr(node, "id", "") != "mapping":
        return
    lines: dict[object, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in lines:
            raise ConfigurationError(
                f"option file {file} sets {key.value!r} twice, "
                f"in line {lines[key.value]} and in line {line}. Keep one."
            )
        lines[key.value] = line
        _refuse_repeated_keys(value, file)
