"""The configuration of expert parallelism, from a YAML file or a dict: docs/configuration.md says what the keys mean."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from plait import _core
from plait._errors import InvalidArgument

# Of each section, the keys that say something about a model. Other keys are other programs' there, but not in ep_plan.
_SECTIONS: dict[str, dict[str, type]] = {
    "parallel": {"expert_parallel_size": int, "ep_plan": dict},
    "ep_plan": {"apply_modules": list, "dispatcher": str, "use_npu_fused_ops": bool},
    "model": {"use_grouped_expert_matmul": bool},
}
_WORDS = {int: "a whole number of at least 1", str: "a name", bool: "true or false", list: "a list of module names", dict: "a section"}


@dataclass(frozen=True)
class EpPlan:
    """How a model is sharded. Given to `plait.parallelize` as it is, or read from a file or dict.

    Attributes:
        apply_modules: patterns of the names of modules of experts; {*} is one part of a name, as a layer's number.
        dispatcher: as for `plait.ops.moe_layer`.
        expert_parallel_size: R that the plan is made for; None: any.
    """

    apply_modules: tuple[str, ...]
    dispatcher: str = "alltoall"
    expert_parallel_size: int | None = None


def read_plan(config: EpPlan | Mapping[str, Any] | str | os.PathLike[str]) -> EpPlan:
    """The plan in a YAML file, in the dict that such a file gives, or in the section ep_plan alone.

    Raises:
        plait.InvalidArgument: all faults at once, each with its place, the value, what is allowed and the nearest name.
        ImportError: a file without the package PyYAML.
    """
    if isinstance(config, EpPlan):
        return config
    reader = _Reader()
    if isinstance(config, Mapping):
        return reader.read(config, "ep_plan" if "apply_modules" in config else "")
    return reader.read(_load_yaml(Path(config), reader), "", str(config))


class _Reader:
    """Gathers values and faults. Lines are known of files alone."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], int] = {}
        self.faults: list[str] = []
        self._values: dict[str, Any] = {}
        self._file = ""

    def read(self, config: Any, section: str, file: str = "") -> EpPlan:
        self._file = file
        if not self.faults:
            if section:
                self._read_section(section, config)
            else:
                self._read_file(config)
        if not self.faults:
            plan = self._plan()
        if self.faults:
            text = self.faults[0] if len(self.faults) == 1 else f"{len(self.faults)} faults:\n  " + "\n  ".join(self.faults)
            raise InvalidArgument(f"parallelize: {text}")
        return plan

    def fault(self, section: str, key: str, text: str) -> None:
        line = self.lines.get((section, key))
        self.faults.append(f"{self._file}:{line}: {text}" if line else f"{self._file}: {text}" if self._file else text)

    def _read_file(self, config: Any) -> None:
        if not isinstance(config, Mapping):
            self.fault("", "", "must be a mapping with the sections parallel and model")
            return
        for name, value in config.items():
            if name in ("parallel", "model"):
                self._read_section(name, value)
            elif near := get_close_matches(str(name), ["parallel", "model"], 1, 0.8):
                self.fault("", name, f'section "{name}" is unknown; did you mean "{near[0]}"?')
        if not self.faults and "apply_modules" not in self._values:
            self.fault("", "", "parallel.ep_plan.apply_modules is missing: it names the modules of experts")

    def _read_section(self, section: str, values: Any) -> None:
        path = "parallel.ep_plan" if section == "ep_plan" else section
        if not isinstance(values, Mapping):
            self.fault(section, "", f"section {path} is {values!r}; it holds keys: {', '.join(_SECTIONS[section])}")
            return
        for key, value in values.items():
            kind = _SECTIONS[section].get(key)
            if kind is None:
                self._unknown(section, path, key)
            elif kind is dict:
                self._read_section(key, value)
            elif not self._fits(key, value, kind):
                self.fault(section, key, f"{key}: {value!r} is not allowed. Allowed: {self._allowed(key, kind)}.")
            else:
                self._values[key] = value

    def _unknown(self, section: str, path: str, key: Any) -> None:
        homes = {name: home for home, keys in _SECTIONS.items() for name in keys}
        strict = section == "ep_plan"
        if key in homes:
            home = "parallel.ep_plan" if homes[key] == "ep_plan" else homes[key]
            self.fault(section, key, f'"{key}" is not a key of {path}; it belongs under {home}')
        elif near := get_close_matches(str(key), _SECTIONS[section], 1, 0.6 if strict else 0.9):
            self.fault(section, key, f'"{key}" is not a key of {path}; did you mean "{near[0]}"?')
        elif strict:
            self.fault(section, key, f'"{key}" is not a key of {path}. Allowed: {", ".join(_SECTIONS[section])}.')

    def _fits(self, key: str, value: Any, kind: type) -> bool:
        if kind is int:
            return isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if kind is list:
            return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(item, str) and item for item in value)
        return isinstance(value, kind) and (key != "dispatcher" or value in _core.dispatchers())

    def _allowed(self, key: str, kind: type) -> str:
        return ", ".join(_core.dispatchers()) if key == "dispatcher" else _WORDS[kind]

    def _plan(self) -> EpPlan:
        dispatcher = self._values.get("dispatcher", "alltoall")
        if dispatcher == "mc2" and not self._values.get("use_npu_fused_ops", True):
            self.fault(
                "ep_plan",
                "dispatcher",
                "dispatcher mc2 is made of fused operators, but use_npu_fused_ops is false: set it to true, or take alltoall",
            )
        if not self._values.get("use_grouped_expert_matmul", True):
            if dispatcher not in ("alltoall", "eager"):
                self.fault(
                    "ep_plan",
                    "dispatcher",
                    f"dispatcher {dispatcher} needs the grouped matmul, but use_grouped_expert_matmul is false: set it to true, or take eager",
                )
            dispatcher = "eager"
        return EpPlan(tuple(self._values.get("apply_modules", ())), dispatcher, self._values.get("expert_parallel_size"))


def _load_yaml(path: Path, reader: _Reader) -> Any:
    """The file's values; notes lines of keys, and faults that the file itself has."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ImportError(f"{path}: reading it needs the package PyYAML: pip install pyyaml") from error
    try:
        root = yaml.compose(path.read_text())
    except OSError as error:
        reader.faults.append(f"{path}: cannot be read: {error.strerror}")
        return None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else f"{path}"
        reader.faults.append(f"{place}: is not YAML: {getattr(error, 'problem', None) or error}")
        return None
    if root is None:
        reader.faults.append(f"{path}: is empty; it needs a section parallel")
        return None
    _note_lines(path, root, "", reader)
    return yaml.SafeLoader("").construct_document(root)


def _note_lines(path: Path, node: Any, section: str, reader: _Reader) -> None:
    if node.id != "mapping":
        return
    for key, value in node.value:
        name, line = key.value, key.start_mark.line + 1
        first = reader.lines.setdefault((section, name), line)
        if first != line:
            reader.faults.append(f'{path}:{line}: "{name}" is given twice; the first time on line {first}')
        if name in _SECTIONS and section in ("", "parallel"):
            _note_lines(path, value, name, reader)
