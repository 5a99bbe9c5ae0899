"""Where whole weights come from, a part at a time: a mapping of tensors, or safetensors files."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from plait._errors import InvalidArgument
from plait.parallel._layout import PROJECTION_NAMES, ExpertShards


class Source(Protocol):
    """Tensors by name."""

    def __contains__(self, key: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def num_rows(self, key: str) -> int:
        """Size of dimension 0; -1 of a scalar."""
    def read(self, key: str, rows: slice | None = None) -> Tensor:
        """The tensor, or some of dimension 0 alone."""


class MappingSource:
    """Tensors that are in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def num_rows(self, key: str) -> int:
        shape = self._tensors[key].shape
        return shape[0] if shape else -1

    def read(self, key: str, rows: slice | None = None) -> Tensor:
        return self._tensors[key] if rows is None else self._tensors[key][rows]


class SafetensorsSource:
    """One safetensors file, or a folder of them: what is not asked for is not read."""

    def __init__(self, path: Path):
        try:
            from safetensors import safe_open
        except ModuleNotFoundError as error:
            raise ImportError(f"{path}: reading it needs the package safetensors: pip install safetensors") from error
        self._files: dict[str, Any] = {}
        for file in _files_of(path):
            opened = safe_open(file, framework="pt")
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def num_rows(self, key: str) -> int:
        shape = self._files[key].get_slice(key).get_shape()
        return shape[0] if shape else -1

    def read(self, key: str, rows: slice | None = None) -> Tensor:
        return self._files[key].get_tensor(key) if rows is None else self._files[key].get_slice(key)[rows.start : rows.stop]


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix == ".json":
            return sorted({path.parent / file for file in json.loads(path.read_text())["weight_map"].values()})
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _files_of(index)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(f"{path}: no safetensors file, and no folder with any")
    return files


class OwnPart(NamedTuple):
    value: Tensor
    keys: list[str]  #: of the source, all that the whole parameter consists of


def own_part(source: Source, prefix: str, parameter: str, shards: ExpertShards) -> OwnPart | None:
    """This rank's experts of a parameter, from whole weights: packed, or expert by expert. None where the source has neither.

    Raises:
        plait.InvalidArgument: the source has some experts but not all that this rank needs; names the missing entry.
    """
    key = prefix + parameter
    if key in source:
        return OwnPart(source.read(key, shards.own), [key]) if source.num_rows(key) == shards.num_experts else None
    layout = shards.layout
    for projections in (layout.projections, *PROJECTION_NAMES):
        names = layout.sources(parameter, projections)
        keys = [[f"{prefix}{expert}.{name}" for name in names] for expert in range(shards.num_experts)]
        if all(key in source for key in keys[0]):
            return OwnPart(_pack(source, keys, shards), [key for expert in keys for key in expert])
    return None


def _pack(source: Source, keys: list[list[str]], shards: ExpertShards) -> Tensor:
    own = keys[shards.own]
    for key in (key for expert in own for key in expert):
        if key not in source:
            raise InvalidArgument(f"{key} is missing: the checkpoint has entries of expert 0, but not of all {shards.num_experts} experts")
    return torch.stack([shards.layout.pack([source.read(key) for key in expert]) for expert in own])
