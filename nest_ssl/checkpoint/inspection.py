"""Inspect a file before torch loads it: the names in its pickle, the nesting, and how much memory its tensors claim.

Torch's restricted reader (`weights_only`) runs no code, but it allocates whatever a file asks for, such as a
`bytearray` of a terabyte, and trusts the sizes that a tensor claims. Here a pickle is interpreted without building
anything of what it describes.
"""

from __future__ import annotations

import io
import math
import pickle
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import IO, Any, ClassVar

from nest_ssl.compat import python3_name, python_unpickler, torch_archive

_Unpickler: Any = python_unpickler()  # in Python: the one in C trusts sizes in the file
LARGEST_PICKLE = 64 * 2**20  # bytes
DEEPEST = 50  # tables in tables
LONGEST_INTEGER = 2048  # bits; Python refuses to print one of 4,301 digits
# Types that may be a key of a table or a member of a set. Tuples may not: hashing tuples that each contain the next one
# twice takes days, and no checkpoint needs them there.
_KEYS = (str, bytes, int, float, bool, NoneType)
_LONGEST_INTEGER_KEY = 64  # bits; longer integers can be chosen so that their hashes collide
_LONG_TEXT = 100  # characters that count as one value
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE = "data.pkl"  # torch's names inside its zip archives
_SCRIPT = "constants.pkl"
_MOST_CLAIMS = 4  # times the size of the file: tensors that share memory, such as an expanded mask, claim it repeatedly
_MOST_REPEATS = 4  # times the length of the pickle: values that share a part repeat it when written out
_MOST_DIMENSIONS = 64  # torch's own limit
_SMALL = 64 * 2**20  # bytes that a file of any size may claim
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
_PARAMETER = "torch._utils._rebuild_parameter"
_SIZE = "torch.Size"
_NAMES = (*_ELEMENT_BYTES, _REBUILD_TENSOR, _ENCODE, _TABLE, _PARAMETER, _SIZE)


class Refused(Exception):
    """The reason why a file is not loaded; the caller puts the file's name in front."""


def inspect_torch_file(file: IO[bytes], more_names: Collection[str] = ()) -> None:
    """Refuse what `torch.save` would not write for tensors, plain values and objects of the classes `more_names`."""
    magic = file.read(len(_ZIP_MAGIC))
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    if magic != _ZIP_MAGIC:
        raise ValueError("it is not the zip archive that torch.save writes")
    reader = torch_archive(file)  # torch's own, so that we see the same members as torch.load
    names = reader.get_all_records()
    if _SCRIPT in names:
        raise Refused("it holds a TorchScript program; only tensors and plain values are loaded")
    sizes = {name: reader.get_record_size(name) for name in names}
    if len({name.lower() for name in names}) < len(names):  # torch ignores the case
        raise Refused("it holds two members of one name")
    if sum(sizes.values()) > length:
        raise Refused(f"it unpacks to {sum(sizes.values())} bytes from {length}; torch.save does not compress")
    if sizes.get(_PICKLE, 0) > LARGEST_PICKLE:
        raise Refused(f"its {_PICKLE} has {sizes[_PICKLE]} bytes; at most {LARGEST_PICKLE} are read")
    content = reader.get_record(_PICKLE)
    value = _Inspector(content, sizes, more_names).load()
    refuse_sprawl(value, most=_MOST_REPEATS * len(content))


def load_plain(content: bytes) -> Any:
    """Load numbers, text and containers of them from a pickle; refuse anything else."""
    if len(content) > LARGEST_PICKLE:
        raise Refused(f"{len(content)} bytes; at most {LARGEST_PICKLE} are read")
    value = _Inspector(content).load()
    refuse_sprawl(value, most=len(content))  # each value takes at least one byte, unless it is repeated
    return value


def refuse_sprawl(value: Any, most: int) -> None:
    """Refuse containers that are nested without bounds, or hold more than `most` values when written out.

    A value that is used several times counts each time, and long text counts as several values, as it would in a copy.
    """
    waiting = [(value, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
            raise Refused(f"it holds an integer of {value.bit_length()} bits; at most {LONGEST_INTEGER} are read")
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        is_container = isinstance(value, list | tuple | set | frozenset)
        if is_container and depth == DEEPEST:
            raise Refused(f"its values are nested more than {DEEPEST} deep")
        values += len(value) if is_container else len(value) // _LONG_TEXT if isinstance(value, str | bytes) else 0
        if values > most:
            raise Refused(f"it unfolds to more than {most} values")
        if is_container:
            waiting.extend((item, depth + 1) for item in value)


@dataclass(frozen=True)
class _Named:
    """A class or function that a pickle names; it is not imported."""

    name: str


@dataclass(frozen=True)
class _Made:
    """Stands for the result of calling the class or function of this name, which is not called."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """The memory that tensors are views of; its size was compared with the bytes in the file."""

    count: int
    element_bytes: int


class _Inspector(_Unpickler):
    """Interprets a pickle of plain values, and of tensors if `sizes` are given; imports and calls nothing.

    `sizes` are those of the other members of the torch file, which hold the tensors' numbers. Objects of the classes
    `more_names` can have any attributes.
    """

    stack: list[Any]

    def __init__(self, content: bytes, sizes: Mapping[str, int] | None = None, more_names: Collection[str] = ()):
        super().__init__(io.BytesIO(content))
        self._sizes = sizes or {}
        self._names = () if sizes is None else (*_NAMES, *more_names)
        self._more_names = more_names
        self._counts: dict[str, int] = {}  # bytes that storages claim, by member of the archive
        self._may_claim = _MOST_CLAIMS * sum(self._sizes.values()) + _SMALL
        self._may_encode = len(content)  # characters; more means that the same text is encoded repeatedly

    def find_class(self, module: str, name: str) -> _Named:
        full_name = python3_name(module, name)
        if full_name not in self._names:
            raise Refused(f"it holds {full_name}; only tensors and plain values are loaded")
        return _Named(full_name)

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _Named(name=kind), str(key), str(), int(count)) if kind in _ELEMENT_BYTES:
                held, claimed = self._sizes.get(f"data/{key}", 0), count * _ELEMENT_BYTES[kind]
                if not 0 <= claimed <= held:
                    raise Refused(f"it claims {count} numbers where it holds {held} bytes")
                if self._counts.setdefault(key, claimed) != claimed:
                    raise Refused("it claims two sizes for the same numbers")  # torch uses the first
                return _Storage(count, _ELEMENT_BYTES[kind])
        raise Refused("it refers to objects outside of it")

    def _make(self) -> None:
        arguments, named = self.stack.pop(), self.stack[-1]
        if not isinstance(named, _Named) or not isinstance(arguments, tuple):
            raise Refused("it calls what is not a function")
        self.stack[-1] = self._result(named.name, arguments)

    def _result(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _ELEMENT_BYTES:
            raise Refused(f"it makes a {name} of its own")
        if name == _TABLE:
            if arguments:  # their keys would be hashed unchecked
                raise Refused("it makes a table of something else than its items")
            return {}
        if name == _ENCODE:
            return self._encoded(*arguments)
        if name == _REBUILD_TENSOR:
            self._check_tensor(*arguments[:4])
        if name == _PARAMETER and arguments[0] != _Made(_REBUILD_TENSOR):
            raise Refused("it makes a parameter of what is not a tensor")
        if name == _SIZE:
            _check_size(*arguments)
        return _Made(name)

    def _encoded(self, text: Any, coding: Any) -> bytes:
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise Refused("it holds bytes in a coding of its own")  # some encodings double their input
        self._may_encode -= len(text)
        if self._may_encode < 0:
            raise Refused("it holds the same bytes many times")
        return text.encode("latin-1")

    def _check_tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> None:
        whole = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or not all(isinstance(n, int) and n >= 0 for n in whole):
            raise Refused(f"a tensor of shape {reprlib.repr(shape)} and strides {reprlib.repr(strides)} is none")
        if len(shape) > _MOST_DIMENSIONS:
            raise Refused(f"a tensor has {len(shape)} dimensions")
        count = math.prod(shape)
        end = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        if count and end > storage.count:
            raise Refused(f"a tensor of shape {shape} needs {end} numbers where there are {storage.count}")
        self._may_claim -= count * storage.element_bytes
        if self._may_claim < 0:
            raise Refused("its tensors claim many times the memory that the file holds")

    def _set_state(self) -> None:
        if not isinstance(self.stack.pop(), dict):  # pairs would become a table with unchecked keys
            raise Refused("it gives an object a state that is not a table")
        changed = self.stack[-1]
        if not isinstance(changed, dict) and not (isinstance(changed, _Made) and changed.name in self._more_names):
            raise Refused("it changes what is not an object")  # a state could give a tensor another, larger storage

    def _with_keys(self, load: Callable[[Any], None], keys: slice) -> None:
        _check_keys(self.stack[keys])
        load(self)

    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)
    # For each opcode that hashes keys: where they are in `self.stack`, the part of the stack since the last mark.
    for _opcode, _keys in (
        (pickle.SETITEM, slice(-2, -1)),
        *((_code, slice(None, None, 2)) for _code in (pickle.SETITEMS, pickle.DICT)),
        *((_code, slice(None)) for _code in (pickle.ADDITEMS, pickle.FROZENSET)),
    ):
        dispatch[_opcode[0]] = lambda self, load=dispatch[_opcode[0]], keys=_keys: self._with_keys(load, keys)
    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = _make
    dispatch[pickle.BUILD[0]] = _set_state
    # Not supported: other ways to build objects, and opcodes that reserve memory before they read.
    for _opcode in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        del dispatch[_opcode[0]]
    for _opcode in (pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER):
        del dispatch[_opcode[0]]


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        if type(key) not in _KEYS:
            kind = type(key).__name__ if isinstance(key, tuple | list | dict | set | frozenset) else "object"
            raise Refused(f"it uses a value of type {kind} as a key; only text and numbers are keys")
        if isinstance(key, int) and key.bit_length() > _LONGEST_INTEGER_KEY:
            raise Refused(f"it uses an integer of {key.bit_length()} bits as a key")


def _check_size(sizes: Any) -> None:
    if not isinstance(sizes, tuple) or len(sizes) > _MOST_DIMENSIONS or not all(type(n) is int for n in sizes):
        raise Refused("it holds a torch.Size that no tensor has")
