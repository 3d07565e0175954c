"""Types and defaults of data options, read where the code takes them out of a node: `node.whole("num_workers", ...)`.

The data's options have no signature: each is checked where it is used. Its call says all that a reader needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from nest_ssl.apps.reference.class_options import REQUIRED, Option, as_yaml, choices_text

_TYPES = {"whole": "int", "number": "float", "flag": "bool", "paths": "str | list"}  # methods of CheckedNode


def declared_options(modules: Sequence[ModuleType]) -> dict[str, Option]:
    """What the modules say about the options that they take out; the same option may be taken out in several places."""
    found: dict[str, list[Option]] = {}
    for module in modules:
        for name, option in _calls(module):
            found.setdefault(name, []).append(option)
    return {name: _joined(options) for name, options in found.items()}


def _calls(module: ModuleType) -> Iterator[tuple[str, Option]]:
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        name, method, owner = node.args[0], node.func.attr, ast.unparse(node.func.value)
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            continue
        if method in (*_TYPES, "choice") and owner.endswith("node"):
            yield name.value, _checked(node, method, module)
        elif method == "get" and owner.endswith("node.config") and len(node.args) == 2:
            yield name.value, Option(None, *_default(node.args[1], module))


def _checked(call: ast.Call, method: str, module: ModuleType) -> Option:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    default, computed = _default(given["default"], module) if "default" in given else (REQUIRED, False)
    if method != "choice":
        return Option(_TYPES[method] + (" | null" if default == "null" else ""), default, computed)
    choices = _value(call.args[1], module)
    return Option(choices_text(choices, optional=default == "null") if choices else "str | null", default, computed)


def _default(expression: ast.expr, module: ModuleType) -> tuple[str, bool]:
    value = _value(expression, module, unknown=expression)
    return (ast.unparse(expression), True) if value is expression else (as_yaml(value), False)


def _value(expression: ast.expr, module: ModuleType, unknown: Any = None) -> Any:
    """What a literal or the name of a module's constant stands for."""
    if isinstance(expression, ast.Name):
        return getattr(module, expression.id, unknown)
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return unknown


def _joined(options: Sequence[Option]) -> Option:
    """One option taken out in several places; where they say different things, that is what is to be put into words."""
    types = dict.fromkeys(option.type for option in options if option.type)
    defaults = list(dict.fromkeys(option.default for option in options))
    computed = len(defaults) > 1 or any(option.computed for option in options)
    return Option(" | ".join(types) or None, "; ".join(defaults), computed)
