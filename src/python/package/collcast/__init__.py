"""Forecasts GPU collectives and training steps, and holds them against what was measured.

Each command of the program ``collcast`` is a function here. Options have the names of the command line, with
underscores; ``collcast sweep --help`` and ``help(collcast.sweep)`` list them. A function returns a ``Result``, which
prints itself, or raises ``collcast.Error`` with the text that the command would print.

    >>> import collcast
    >>> result = collcast.forecast("aws-p5", nodes=32, collective="all_reduce", sizes="1M:1G:4")
    >>> result.to_pandas()
"""

from __future__ import annotations

import functools as _functools
import html as _html
import json as _json
import numbers as _numbers
import operator as _operator
import os as _os
import shutil as _shutil
import signal as _signal
import sys as _sys
import sysconfig as _sysconfig
import warnings as _warnings
from collections.abc import Mapping as _Mapping
from pathlib import Path as _Path

from . import _collcast
from ._collcast import Error, __version__

__all__ = [
    "Error",
    "Result",
    "__version__",
    "ask",
    "bench",
    "calibrate",
    "check",
    "compare",
    "completions",
    "convert",
    "forecast",
    "lint",
    "man",
    "merge",
    "options",
    "plan",
    "probe",
    "profile",
    "schema",
    "self_test",
    "serve",
    "simulate",
    "sweep",
    "topo",
    "trace",
    "transfer",
    "tune",
    "validate",
]

#: Rows of a table that are printed; ``to_pandas()`` has all.
ROWS = 30
#: Height of a page in a notebook, in pixels.
HEIGHT = 620


class Result:
    """What a command answered. ``print(result)`` shows it as a terminal does; a notebook shows a page with pictures."""

    def __init__(self, report: _collcast.Report, code: int, notes: str) -> None:
        self._report = report
        self._json: dict | None = None
        #: Exit code of the command: 0, or 1 where the answer is "no".
        self.code = code
        #: What the command said beside the answer.
        self.notes = notes

    @property
    def json(self) -> dict:
        """The answer as ``--format json`` prints it."""
        if self._json is None:
            self._json = _json.loads(self._report.json())
        return self._json

    @property
    def ok(self) -> bool:
        """Whether nothing failed: no call is slow, no check broken."""
        return self.code == 0

    @property
    def verdict(self) -> str:
        """The answer in a sentence; empty where a command gives none."""
        return (self.json.get("verdict") or {}).get("sentence", "")

    @property
    def assumptions(self) -> list[str]:
        """What was assumed."""
        return self.json.get("assumptions", [])

    @property
    def warnings(self) -> list[str]:
        """What to know before using the numbers."""
        return self.json.get("warnings", [])

    @property
    def tables(self) -> list[str]:
        """Names of the tables, the most important first."""
        return [name for name, _, _ in self._report.tables()]

    def table(self, name: str | None = None) -> list[dict]:
        """The rows of a table, by default the first, each with its columns by name."""
        _, columns, rows = self._rows(name)
        return [{column: row.get(column) for column in columns} for row in rows]

    def _rows(self, name: str | None) -> tuple[str, list[str], list[dict]]:
        tables = self._report.tables()
        if not tables:
            raise Error("this answer has no table: see `.json`")
        name = name or tables[0][0]
        for found, _, columns in tables:
            if found == name:
                return name, columns, self.json[name]
        raise Error(f"there is no table `{name}`; there are {', '.join(self.tables)}")

    def to_pandas(self, table: str | None = None):
        """A table as a ``pandas.DataFrame``."""
        import pandas

        _, columns, rows = self._rows(table)
        return pandas.DataFrame.from_records(rows, columns=columns)

    def to_arrow(self, table: str | None = None):
        """A table as a ``pyarrow.Table``."""
        import pyarrow

        name, columns, rows = self._rows(table)
        arrays = {column: pyarrow.array([row.get(column) for row in rows]) for column in columns}
        known = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "string": pyarrow.string(), "boolean": pyarrow.bool_()}
        for column, array in arrays.items():
            # No value says what it would be of: the schema of the answer does.
            if array.type == pyarrow.null():
                arrays[column] = array.cast(known.get(_kinds(self.json["schema"], name).get(column), array.type))
        return pyarrow.table(arrays)

    def to_html(self) -> str:
        """The answer as a page for a browser: one file with pictures, which loads nothing."""
        return self._report.html()

    def save(self, path: str | _os.PathLike[str]) -> None:
        """Writes the answer as the name ends: ``.html`` (a page), ``.json``, ``.csv``, ``.md``, ``.xml`` (JUnit) or ``.txt``."""
        self._report.save(path)

    def __repr__(self) -> str:
        return self._report.text(_shutil.get_terminal_size((160, 24)).columns, ROWS).rstrip("\n")

    def _repr_html_(self) -> str:
        page = _html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0" sandbox="allow-scripts"></iframe>'


@_functools.lru_cache(maxsize=None)
def _kinds(schema: str, table: str) -> dict[str, str]:
    """What the columns of a table hold, by the schema of the answer: ``integer``, ``number``, ``string`` or ``boolean``."""
    whole = _json.loads(_collcast.ask("schema", [schema], [], None)[1])
    kinds: dict[str, str] = {}
    for shape in [whole, *whole.get("anyOf", [])]:
        rows = shape.get("properties", {}).get(table, {}).get("items", {})
        for column, is_of in rows.get("properties", {}).items():
            named = is_of.get("type", [])
            values = [kind for kind in ([named] if isinstance(named, str) else named) if kind != "null"]
            if len(values) == 1:
                kinds.setdefault(column, values[0])
    return kinds


def _is_flag(value) -> bool:
    """Whether it is yes or no, also as numpy has it."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _word(value) -> str:
    """A value as the command line takes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, _os.PathLike):
        return _os.fspath(value)
    if not _is_flag(value):
        try:
            return str(_operator.index(value))
        except TypeError:
            pass
        if isinstance(value, _numbers.Real):
            return str(float(value))
    raise Error(f"{value!r} is of type {type(value).__name__}: give text, a number, a path, a list or a dict of these")


def _several(value) -> list | None:
    """The values in one that holds several; none of one by itself."""
    if isinstance(value, (str, bytes, _os.PathLike)):
        return None
    try:
        return list(iter(value))
    except TypeError:
        return None


def _words(value):
    """A value of an option: a flag, text, or several texts."""
    if _is_flag(value):
        return bool(value)
    if isinstance(value, _Mapping):
        # NCCL reads words as 0.
        return [f"{name}={int(one) if _is_flag(one) else _word(one)}" for name, one in value.items()]
    several = _several(value)
    return _word(value) if several is None else [_word(one) for one in several]


def _program() -> str | None:
    """The console script, which commands start again where they need processes of their own."""
    folders = [_sysconfig.get_path("scripts"), _sysconfig.get_path("scripts", f"{_os.name}_user")]
    scripts = [_Path(folder) / "collcast" for folder in folders]
    return next((str(script) for script in scripts if script.is_file()), None)


def ask(command: str, *values, **options) -> Result | str:
    """Runs a command of ``collcast``. Gives its answer, or what it prints where that is no report.

    ``None`` leaves an option out, ``True`` gives a flag. A list, an array or a series gives several values, a dict pairs
    such as ``env={"NCCL_ALGO": "Ring"}``.
    """
    return _answer(command, values, options)


def _answer(command: str, values: tuple, options: dict) -> Result | str:
    """The answer of a command to whoever called the function that called this one."""
    given = [(name, _words(value)) for name, value in options.items() if value is not None]
    positional: list[str] = []
    for value in values:
        several = _several(value)
        positional.extend(_word(one) for one in ([value] if several is None else several) if one is not None)
    reports, text, notes, code = _collcast.ask(command, positional, given, _program())
    result = Result(reports[-1], code, notes) if reports else None
    known = result.warnings if result else []
    for line in notes.splitlines():
        # The notes of text have no other place; those of a result are in it.
        what, _, said = line.partition(": ")
        if said not in known and (what == "warning" or (text and not result and what == "note")):
            _warnings.warn(said, stacklevel=3)
    if result:
        return result
    if code:
        error = Error((text or notes).strip() or f"`{command}` ended with exit code {code}")
        error.code = code
        raise error
    return text or notes


def options(command: str) -> dict[str, str]:
    """The options of a command, with what each is for."""
    return {name: help for name, positional, _, help in _collcast.choices(command) if not positional}


def _function(command: str, about: str):
    def function(*values, **options):
        return _answer(command, values, options)

    listed = "\n".join(
        f"    {name}: {' '.join(help.split())}"
        for name, positional, _, help in _collcast.choices(command)
        if not positional and name != "format"
    )
    function.__name__ = function.__qualname__ = command.replace("-", "_")
    function.__doc__ = f"{about}\n\nOptions, as of `collcast {command}`:\n{listed}\n"
    function.__module__ = __name__
    return function


for _command, _about in _collcast.commands():
    if _command != "report":
        globals()[_command.replace("-", "_")] = _function(_command, _about)
del _command, _about


def forecast(machine=None, /, **options) -> Result:
    """How long calls take on a machine, by size: the same as ``sweep``.

    ``collcast.forecast("aws-p5", nodes=32, collective="all_reduce", sizes="8:8G:2")``
    """
    return _answer("sweep", (machine,), options)


def _main() -> int:
    """The console script."""
    # Ctrl-C ends the program as it does elsewhere: Python would wait for it to come back.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    return _collcast.main([_os.path.basename(_sys.argv[0]), *_sys.argv[1:]], _os.path.abspath(_sys.argv[0]))
