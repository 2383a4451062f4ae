"""From files to a trained model: what `widehead train` does, with the same options (docs/training.md, docs/cli.md)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from . import _core

try:
    from tqdm.auto import tqdm as _tqdm
except ImportError:
    _tqdm = None


class _Bar:
    """A run on a tqdm bar: reading, then training."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._stage = ""

    def __call__(self, event: str, payload: Any) -> None:
        if event == "note":
            _tqdm.write(payload)
        elif event == "evaluated":
            figures = "  ".join(f"{name} {value:.5g}" for name, value in payload["figures"].items())
            _tqdm.write(f"epoch {payload['epoch']}: {figures}")
        else:
            share = payload if event == "reading" else payload["share"]
            if event != self._stage:
                self.close()
                self._stage = event
                self._bar = _tqdm(
                    total=100.0, desc=event, unit="%", bar_format="{desc} {percentage:3.0f}%|{bar}| {postfix}"
                )
            if event == "training":
                self._bar.set_postfix_str(
                    f"epoch {payload['epoch']}/{payload['epochs']}, loss {payload['loss']:.5g}, "
                    f"{payload['examples_per_second']:.0f} examples/s",
                    refresh=False,
                )
            self._bar.update(100 * share - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _plain(value: Any) -> Any:
    """Paths as text, sequences as lists: what the options table holds."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _train(job: str, options: dict[str, Any]) -> dict[str, Any]:
    progress = options.pop("progress", None)
    config = options.pop("config", None)
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    if progress is None or progress is True:
        watch: Any = _Bar() if _tqdm is not None else None
    else:
        watch = progress or None
    try:
        return _core.train(job, given, os.fspath(config or ""), watch or (lambda event, payload: None))
    finally:
        if isinstance(watch, _Bar):
            watch.close()


_TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "ints": "int or list of int",
    "paths": "path or list",
}


def _make(job: str, summary: str) -> Callable[..., dict[str, Any]]:
    rows = _core.train_options(job)

    def train(**options: Any) -> dict[str, Any]:
        return _train(job, options)

    lines, group = [summary, ""], None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += [f"{group}:"]
        kind = " | ".join(row["choices"]) or _TYPES[row["type"]]
        default = "required" if row["required"] else f"default {row['default']!r}"
        lines += [f"    {row['name']} ({kind}; {default}): {row['help']}"]
    lines += [
        "",
        "config is a TOML file with any of these. progress: None for a tqdm bar where tqdm is installed, False for none, or a",
        "function called with (event, payload): 'note', 'reading', 'training', 'evaluated'. None stands for the default.",
        "",
        "Returns a dict: 'complete', 'model' (the folder), 'figures' (of the held-out data), and where the run stands.",
        "Ctrl-C saves the run and raises KeyboardInterrupt; the same call with resume=True goes on, bit for bit.",
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(row["name"], keyword, default=inspect.Parameter.empty if row["required"] else row["default"])
        for row in rows
    ] + [inspect.Parameter(name, keyword, default=None) for name in ("config", "progress")]
    train.__signature__ = inspect.Signature(parameters, return_annotation=dict)  # type: ignore[attr-defined]
    train.__name__ = train.__qualname__ = f"train_{job}"
    train.__module__ = "widehead"
    train.__doc__ = "\n".join(lines)
    return train


train_lm = _make("lm", "A language model: the next word from the words before it.")
train_labels = _make("labels", "Extreme multi-label classification: labels from sparse features.")
train_items = _make("items", "A recommender: all items from a user's items.")
