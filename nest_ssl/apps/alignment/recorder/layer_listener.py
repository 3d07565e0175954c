"""Copy what goes into and comes out of the layers of a model while it runs."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

from torch import Tensor, nn

GIGABYTE = 1e9


@dataclasses.dataclass
class _Call:
    """A layer that is running."""

    name: str
    inputs: dict[str, Tensor] | None  # None: not to be kept
    versions: dict[str, int]  # of the inputs: an operation in place counts it up
    places_used: set[str] = dataclasses.field(default_factory=set)  # of layers with several names, called from here


class LayerListener:
    """Copies what goes into every layer and what comes out, while it is attached.

    It uses forward hooks, which change nothing, and copies inputs before a layer can overwrite them in place. A layer
    that a model uses in several places has the name of the place. `calls` is in the order in which layers finish,
    which is the order of data. Inputs that a layer overwrote are copied again afterwards, as `changed`: NeMo adds
    dither to the batch in place.
    """

    def __init__(self, model: nn.Module, patterns: Iterable[str] = ("*",), limit: float = 8.0):
        self.calls: list[dict[str, Any]] = []
        self.left_out = 0  # calls beyond the limit
        self.bytes = 0
        self._patterns, self._limit = tuple(patterns), limit * GIGABYTE
        self._running: list[_Call] = []
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        places: dict[nn.Module, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            if name:
                places.setdefault(module, []).append(name)
        self._hooks = [hook for module, names in places.items() for hook in self._attach(module, names)]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def by_layer(self) -> dict[str, list[dict[str, Any]]]:
        """Return the calls of each layer."""
        layers: dict[str, list[dict[str, Any]]] = {}
        for order, call in enumerate(self.calls):
            layers.setdefault(call["name"], []).append({"order": order, **call})
        return layers

    def _attach(self, module: nn.Module, names: list[str]) -> list[Any]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            name = self._place(names)
            wanted = any(fnmatch(name, pattern) for pattern in self._patterns)
            given = _tensors({**dict(enumerate(args)), **kwargs}) if wanted else []
            versions = {key: tensor._version for key, tensor in given}
            self._running.append(_Call(name, self._keep(given) if wanted else None, versions))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = self._running.pop()
            if call.inputs is None:
                return
            outputs = self._keep(_tensors(output))
            given = _tensors({**dict(enumerate(args)), **kwargs})
            changed = self._keep([(key, t) for key, t in given if t._version != call.versions.get(key)])
            if self.bytes > self._limit:
                self.left_out += 1
                return
            self.calls.append(
                {
                    "name": call.name,
                    "type": type(module).__name__,
                    "inputs": call.inputs,
                    "outputs": outputs,
                    **({"changed": changed} if changed else {}),
                }
            )

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        ]

    def _place(self, names: list[str]) -> str:
        """Return the name of a layer in this call: its next unused name inside the innermost running layer."""
        if len(names) == 1:
            return names[0]
        for parent in reversed(self._running):
            below = [name for name in names if name.startswith(f"{parent.name}.")]
            if below:
                unused = [name for name in below if name not in parent.places_used]
                chosen = (unused or below)[0]
                parent.places_used.add(chosen)
                return chosen
        return names[0]

    def _keep(self, tensors: list[tuple[str, Tensor]]) -> dict[str, Tensor]:
        return {} if self.bytes > self._limit else {name: self._copy(tensor) for name, tensor in tensors}

    def _copy(self, tensor: Tensor) -> Tensor:
        """Return a copy on the CPU; a layer's output and the next layer's input share it if nothing overwrote them."""
        known = self._copies.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        copy = tensor.detach().to("cpu", copy=True)
        self.bytes += copy.numel() * copy.element_size()
        self._copies[id(tensor)] = (weakref.ref(tensor), tensor._version, copy)
        return copy


def _tensors(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    """Return every tensor in arguments or results, with its position or keyword."""
    if isinstance(value, Tensor):
        return [(name or "0", value)]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    return [found for key, item in items for found in _tensors(item, f"{name}.{key}" if name else str(key))]
