"""`Option`, with its key, name, aliases, type, default and help, and the registry of all options.

`tidegate.core.options` has the options of the engine and their values; other modules import from there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar, overload

from tidegate.core.errors import ConfigurationError
from tidegate.core.option_types import OptionType

if TYPE_CHECKING:
    from tidegate.core.options import Options

T = TypeVar("T")

CODE: Final = "code"
"""The origin of options that a program passes to `Environment` as keyword arguments."""


class Option(Generic[T]):
    """One option. `Options.<name>` is the option itself, ``options.<name>`` its value."""

    __slots__ = ("aliases", "default", "help", "key", "name", "type")

    def __init__(
        self,
        key: str,
        type: OptionType[T],
        default: T,
        help: str,
        *,
        name: str = "",
        aliases: Sequence[str] = (),
    ) -> None:
        self.key = key
        self.name = name or key.replace(".", "_")
        self.type = type
        self.default = default
        self.help = help
        self.aliases = tuple(aliases)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Option({self.key!r}, {self.type.name}, default {self.type.show(self.default)})"

    def __reduce__(self) -> tuple[Callable[[str], Option[Any]], tuple[str]]:
        return find_option, (self.key,)

    @overload
    def __get__(self, options: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, options: Options, owner: type) -> T: ...
    def __get__(self, options: Options | None, owner: type) -> Option[T] | T:
        return self if options is None else options.get(self)

    def __set__(self, options: Options, value: object) -> NoReturn:
        raise AttributeError(f"options are immutable: cannot set {self.name}")

    def written(self, origin: str) -> str:
        """The spelling used in an origin: the keyword argument in code, otherwise the key."""
        return self.name if origin == CODE else self.key

    def parse(self, value: object, origin: str, spelling: str = "") -> T:
        """The value in the option's type; raises `ConfigurationError` with the value and the expected form."""
        try:
            return self.type.parse(value)
        except ValueError as reason:
            why = f": {reason}" if str(reason) else ""
            name = spelling if plain(spelling or self.key) != self.key else self.key
            raise ConfigurationError(
                f"option {name} cannot be {value!r} (set in {origin}){why}. Expected {self.type.form}."
            ) from None


class OptionRow(NamedTuple):
    """One line of the option reference in ``--help`` and the documentation."""

    key: str
    name: str
    type: str
    default: str
    help: str


REGISTRY: Final[dict[str, Option[Any]]] = {}
SPELLINGS: Final[dict[str, Option[Any]]] = {}


def register(option: Option[T]) -> Option[T]:
    """Add an option to the registry, once, when its module is imported. No two may share a spelling."""
    if not option.name.isidentifier():
        raise ValueError(f"option {option.key}: {option.name!r} cannot be a keyword argument")
    spellings = {plain(spelling) for spelling in (option.key, option.name, *option.aliases)}
    for spelling in spellings:
        if spelling in SPELLINGS:
            raise ValueError(f"option {option.key}: {spelling} already means {SPELLINGS[spelling].key}")
    REGISTRY[option.key] = option
    for spelling in spellings:
        SPELLINGS[spelling] = option
    return option


def find_option(spelling: str, origin: str = "") -> Option[Any]:
    """The option of a key, name or alias, whatever the case and ``-`` or ``_``; an error names the nearest one."""
    option = SPELLINGS.get(plain(spelling))
    if option is not None:
        return option
    known = sorted(option.written(origin) for option in REGISTRY.values())
    near = difflib.get_close_matches(plain(spelling), known if origin == CODE else SPELLINGS, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else f"The options are: {', '.join(known)}."
    place = f" (set in {origin})" if origin else ""
    raise ConfigurationError(f"there is no option {spelling!r}{place}. {hint}")


def describe() -> list[OptionRow]:
    """Every registered option, sorted by key."""
    options = (REGISTRY[key] for key in sorted(REGISTRY))
    return [OptionRow(o.key, o.name, o.type.name, o.type.show(o.default), o.help) for o in options]


def plain(spelling: str) -> str:
    """The form in which spellings are compared."""
    return spelling.strip().lower().replace("-", "_")
