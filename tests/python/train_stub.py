"""python/widehead/_train.pyi from the options table. `python tests/python/train_stub.py` writes it anew."""

from pathlib import Path

from widehead import _core

STUB = Path(__file__).parents[2] / "python/widehead/_train.pyi"
HEADER = '''"""Made from the options table by tests/python/train_stub.py."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union

_Path = Union[str, os.PathLike[str]]
_Progress = Union[bool, Callable[[str, Any], object], None]
'''
TYPES = {"bool": "bool", "int": "int", "float": "float", "str": "_Path", "ints": "int | Sequence[int]"}
TYPES["paths"] = "_Path | Sequence[_Path]"


def parameter(row):
    kind = f"Literal[{', '.join(map(repr, row['choices']))}]" if row["choices"] else TYPES[row["type"]]
    if row["name"] == "device":
        kind = "str"
    return f"    {row['name']}: {kind}" + ("," if row["required"] else " | None = ...,")


def stub():
    text = HEADER
    for job in ("lm", "labels", "items"):
        rows = _core.train_options(job)
        lines = [parameter(row) for row in rows]
        lines += ["    config: _Path | None = ...,", "    progress: _Progress = ...,"]
        text += (
            f"{'' if job != 'lm' else chr(10)}def train_{job}(\n    *,\n"
            + "\n".join(lines).replace('"', "'")
            + "\n) -> dict[str, Any]: ...\n"
        )
    return text.replace("'", '"')


if __name__ == "__main__":
    STUB.write_text(stub())
