"""Look a file over before torch loads it: what its pickle names, how it nests, how much its tensors claim.

Torch's own restricted reader runs no code, but it makes whatever a file asks for, a `bytearray` of a terabyte say, and
believes it about how many bytes stand behind a tensor. Here a pickle is followed without doing what it says.
"""

from __future__ import annotations

import _compat_pickle
import io
import math
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any, ClassVar

import torch

LARGEST_PICKLE = 64 * 2**20  # bytes
DEEPEST = 50  # tables in tables; also tuples in tuples, which are hashed on the stack until that overflows
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE = "data.pkl"  # torch's names inside its zip archives
_SCRIPT = "constants.pkl"
# Tensors that share memory claim it more than once, as a mask does that is the same for all features.
_MOST_CLAIMS = 4
_SMALL = 64 * 2**20  # bytes that may be claimed whatever the file holds
_ELEMENT_BYTES = {
    **dict.fromkeys(("torch.ByteStorage", "torch.CharStorage", "torch.BoolStorage", "torch.storage.UntypedStorage"), 1),
    **dict.fromkeys(("torch.ShortStorage", "torch.HalfStorage", "torch.BFloat16Storage"), 2),
    **dict.fromkeys(("torch.IntStorage", "torch.FloatStorage"), 4),
    **dict.fromkeys(("torch.LongStorage", "torch.DoubleStorage", "torch.ComplexFloatStorage"), 8),
    "torch.ComplexDoubleStorage": 16,
}
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_ENCODE = "_codecs.encode"  # how old pickle protocols write bytes
_TABLE = "collections.OrderedDict"
_NAMES = (*_ELEMENT_BYTES, _REBUILD_TENSOR, _ENCODE, _TABLE, "torch._utils._rebuild_parameter", "torch.Size")


class Refused(Exception):
    """Why a file is not loaded; the message needs the file's name in front."""


def inspect_torch_file(file: IO[bytes], more_names: Collection[str] = ()) -> None:
    """Refuse what `torch.save` would not have written from tensors, plain values and objects of `more_names`."""
    magic = file.read(len(_ZIP_MAGIC))
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    if magic != _ZIP_MAGIC:
        raise ValueError("it is not the zip archive that torch.save writes")
    reader = torch._C.PyTorchFileReader(file)  # torch's own, so that no other reading of the archive slips past it
    names = reader.get_all_records()
    if _SCRIPT in names:
        raise Refused("it holds a TorchScript program; only tensors and plain values are loaded")
    sizes = {name: reader.get_record_size(name) for name in names}
    if len({name.lower() for name in names}) < len(names):  # torch does not mind the case
        raise Refused("it holds two members of one name")
    if sum(sizes.values()) > length:
        raise Refused(f"it unpacks to {sum(sizes.values())} bytes from {length}; torch.save does not compress")
    if sizes.get(_PICKLE, 0) > LARGEST_PICKLE:
        raise Refused(f"its {_PICKLE} has {sizes[_PICKLE]} bytes; at most {LARGEST_PICKLE} are read")
    _TorchInspector(reader.get_record(_PICKLE), sizes, more_names).load()


def load_plain(content: bytes) -> Any:
    """Numbers, text and containers of them from a pickle; anything else that it holds is refused."""
    if len(content) > LARGEST_PICKLE:
        raise Refused(f"{len(content)} bytes; at most {LARGEST_PICKLE} are read")
    value = _Inspector(content).load()
    refuse_sprawl(value, most=len(content))  # no value takes less than a byte, unless it is used again and again
    return value


def refuse_sprawl(value: Any, most: int) -> None:
    """Refuse containers that are nested without bounds, or hold more than `most` values when written out."""
    waiting = [(value, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if not isinstance(value, list | tuple | set | frozenset):
            continue
        values += len(value)
        if depth == DEEPEST:
            raise Refused(f"its values are nested more than {DEEPEST} deep")
        if values > most:
            raise Refused(f"it unfolds to more than {most} values")
        waiting.extend((item, depth + 1) for item in value)


class _Named:
    """A class or function that a pickle names, not looked up."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Made:
    """What a pickle wants made of a name."""


class _Storage(_Made):
    """The numbers that tensors are views of; their count was checked against what the file holds."""

    def __init__(self, count: int, element_bytes: int) -> None:
        self.count = count
        self.element_bytes = element_bytes


class _Inspector(pickle._Unpickler):  # in Python: the one in C trusts sizes in the file
    """Follows a pickle of plain values; no name is looked up, nothing is called."""

    names: Collection[str] = ()
    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._depths: dict[int, int] = {}  # of tuples, by id: a tuple that took the place of another has its own

    def find_class(self, module: str, name: str) -> _Named:
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        full_name = f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"
        if full_name not in self.names:
            raise Refused(f"it holds {full_name}; only tensors and plain values are loaded")
        return _Named(full_name)

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to objects outside of it")

    def made(self, name: str, arguments: Any) -> Any:
        return _Made()

    def _make(self) -> None:
        arguments, named = self.stack.pop(), self.stack[-1]
        if not isinstance(named, _Named) or not isinstance(arguments, tuple):
            raise Refused("it calls what is not a function")
        self.stack[-1] = self.made(named.name, arguments)

    def _set_state(self) -> None:
        self.stack.pop()
        if not isinstance(self.stack[-1], _Made | dict):
            raise Refused("it changes what is not an object")

    def _tuple(self, load: Callable[[Any], None]) -> None:
        load(self)
        items = self.stack[-1]
        depth = 1 + max((self._depths.get(id(item), 0) for item in items if type(item) is tuple), default=0)
        if depth > DEEPEST:
            raise Refused(f"its values are nested more than {DEEPEST} deep")
        self._depths[id(items)] = depth

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    for _opcode in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
        dispatch[_opcode[0]] = lambda self, load=dispatch[_opcode[0]]: self._tuple(load)
    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = _make
    dispatch[pickle.BUILD[0]] = _set_state
    # Other ways to make objects, and the one opcode that reserves memory before it reads.
    for _opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        del dispatch[_opcode[0]]
    for _opcode in (pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER):
        del dispatch[_opcode[0]]


class _TorchInspector(_Inspector):
    """Follows the pickle inside a torch file, whose other members hold the tensors' numbers."""

    def __init__(self, content: bytes, sizes: Mapping[str, int], more_names: Collection[str]) -> None:
        super().__init__(content)
        self.names = {*_NAMES, *more_names}
        self._sizes = sizes
        self._may_claim = _MOST_CLAIMS * sum(sizes.values()) + _SMALL

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _Named(name=kind), str(key), str(), int(count)) if kind in _ELEMENT_BYTES:
                held = self._sizes.get(f"data/{key}", 0)
                if not 0 <= count * _ELEMENT_BYTES[kind] <= held:
                    raise Refused(f"it claims {count} numbers where it holds {held} bytes")
                return _Storage(count, _ELEMENT_BYTES[kind])
        raise Refused("it refers to objects outside of it")

    def made(self, name: str, arguments: Any) -> Any:
        if name in _ELEMENT_BYTES:
            raise Refused(f"it makes a {name} of its own")
        if name == _REBUILD_TENSOR:
            self._check_tensor(*arguments[:4])
        elif name == _ENCODE and not (len(arguments) == 2 and arguments[1] in ("latin1", "latin-1")):
            raise Refused("it holds bytes in a coding of its own")  # some codings double what they are given
        return {} if name == _TABLE else _Made()

    def _check_tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> None:
        whole = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or not all(isinstance(n, int) and n >= 0 for n in whole):
            raise Refused(f"a tensor of shape {shape} and strides {strides} is none")
        count = math.prod(shape)
        end = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        if count and end > storage.count:
            raise Refused(f"a tensor of shape {shape} needs {end} numbers where there are {storage.count}")
        self._may_claim -= count * storage.element_bytes
        if self._may_claim < 0:
            raise Refused("its tensors claim many times the memory that the file holds")
