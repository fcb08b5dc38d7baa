"""Writes the stubs of the package from the program's own options: `python stubs.py > collcast/__init__.pyi`."""

import keyword

import collcast
from collcast import _collcast

HEAD = '''"""Written by tests/stubs.py from the options of the program; a test holds it against them."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

from ._collcast import Error as Error
from ._collcast import Report as _Report
from ._collcast import __version__ as __version__

_Value = str | SupportsIndex | SupportsFloat | PathLike[str]
_Values = _Value | Iterable[Any]
_Pairs = _Values | Mapping[str, _Value]

__all__ = {all}

ROWS: int
HEIGHT: int

class Result:
    code: int
    notes: str
    def __init__(self, report: _Report, code: int, notes: str) -> None: ...
    @property
    def json(self) -> dict[str, Any]: ...
    @property
    def ok(self) -> bool: ...
    @property
    def verdict(self) -> str: ...
    @property
    def assumptions(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def tables(self) -> list[str]: ...
    def table(self, name: str | None = None) -> list[dict[str, Any]]: ...
    def to_pandas(self, table: str | None = None) -> Any: ...
    def to_arrow(self, table: str | None = None) -> Any: ...
    def to_html(self) -> str: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def _repr_html_(self) -> str: ...

def ask(command: str, *values: _Values | None, **options: _Pairs | bool | None) -> Result | str: ...
def options(command: str) -> dict[str, str]: ...
'''

#: Commands that also print what is no report.
TEXT = {"completions", "convert", "man", "schema"}

#: Options with which a command prints no report: a part for `merge`, a schema, that a file is written.
TEXTS = {"check": ["shard", "schema", "update"], "plan": ["shard"], "simulate": ["scenario_schema"], "sweep": ["shard"]}

#: Commands whose options are those of a command within them.
OUTER = {"topo", "profile"}


def signature(name: str, command: str, values: str) -> str:
    if command in OUTER:
        return f"def {name}({values}, **options: _Pairs | bool | None) -> Result | str: ..."
    kinds = {"flag": "bool | None", "value": "_Values | None", "values": "_Pairs | None"}
    texts = TEXTS.get(command, [])
    without = {"flag": "Literal[False] | None", "value": "None"}
    lines = [*(["@overload"] if texts else []), f"def {name}("]
    lines.append(f"    {values},")
    options = [choice for choice in _collcast.choices(command) if not choice[1]]
    if not values.startswith("*") and options:
        lines.append("    *,")
    named = {option: (without if option in texts else kinds)[takes] for option, _, takes, _ in options}
    if "size" in named:
        named["sizes"] = named["size"]
    for option, kind in named.items():
        if not keyword.iskeyword(option):
            lines.append(f"    {option}: {kind} = None,")
    # Those that are words of Python, such as `from`, go by ** alone.
    lines.append("    **more: _Pairs | bool | None,")
    answer = "Result | str" if command in TEXT else "Result"
    lines.append(f") -> {answer}: ...")
    with_text = {"flag": "Literal[True]", "value": "_Values"}
    star = "" if values.startswith("*") else "*, "
    for option, _, takes, _ in options:
        if option in texts:
            lines.append("@overload")
            lines.append(f"def {name}({values}, {star}{option}: {with_text[takes]}, **more: _Pairs | bool | None) -> str: ...")
    return "\n".join(lines)


def stubs() -> str:
    parts = [HEAD.replace("{all}", repr(collcast.__all__))]
    parts.append(signature("forecast", "sweep", "machine: _Values | None = None, /"))
    for command, _ in _collcast.commands():
        if command != "report":
            parts.append(signature(command.replace("-", "_"), command, "*values: _Values | None"))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(stubs(), end="")
