"""Look a file over before torch loads it: what its pickle names, how it nests, how much its tensors claim.

Torch's own restricted reader runs no code, but it makes whatever a file asks for, a `bytearray` of a terabyte say, and
believes it about how many bytes stand behind a tensor. Here a pickle is followed without doing what it says.
"""

from __future__ import annotations

import io
import math
import pickle
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType
from typing import IO, Any, ClassVar

from nest_ssl.compat import python3_name, python_unpickler, torch_archive

_Unpickler: Any = python_unpickler()  # in Python: the one in C trusts sizes in the file
LARGEST_PICKLE = 64 * 2**20  # bytes
DEEPEST = 50  # tables in tables
LONGEST_INTEGER = 2048  # bits; Python refuses to print one of 4,301 digits
# What may be a key of a table or a member of a set. A tuple may not: hashing one that holds another twice, which holds
# a third twice, and so on, takes days, and nobody who writes checkpoints needs one there.
_KEYS = (str, bytes, int, float, bool, NoneType)
_LONGEST_INTEGER_KEY = 64  # bits; longer ones can be made to collide
_LONG_TEXT = 100  # characters that count as one value
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE = "data.pkl"  # torch's names inside its zip archives
_SCRIPT = "constants.pkl"
# Tensors that share memory claim it more than once, as a mask does that is the same for all features.
_MOST_CLAIMS = 4
_MOST_REPEATS = 4  # values that share a part are written out more than once
_MOST_DIMENSIONS = 64  # that torch knows
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
_PARAMETER = "torch._utils._rebuild_parameter"
_SIZE = "torch.Size"
_NAMES = (*_ELEMENT_BYTES, _REBUILD_TENSOR, _ENCODE, _TABLE, _PARAMETER, _SIZE)


class Refused(Exception):
    """Why a file is not loaded; the message needs the file's name in front."""


def inspect_torch_file(file: IO[bytes], more_names: Collection[str] = ()) -> None:
    """Refuse what `torch.save` would not have written from tensors, plain values and objects of `more_names`."""
    magic = file.read(len(_ZIP_MAGIC))
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    if magic != _ZIP_MAGIC:
        raise ValueError("it is not the zip archive that torch.save writes")
    reader = torch_archive(file)  # torch's own, so that no other reading of the archive slips past it
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
    content = reader.get_record(_PICKLE)
    value = _TorchInspector(content, sizes, more_names).load()
    refuse_sprawl(value, most=_MOST_REPEATS * len(content))


def load_plain(content: bytes) -> Any:
    """Numbers, text and containers of them from a pickle; anything else that it holds is refused."""
    if len(content) > LARGEST_PICKLE:
        raise Refused(f"{len(content)} bytes; at most {LARGEST_PICKLE} are read")
    value = _Inspector(content).load()
    refuse_sprawl(value, most=len(content))  # no value takes less than a byte, unless it is used again and again
    return value


def refuse_sprawl(value: Any, most: int) -> None:
    """Refuse containers that are nested without bounds, or hold more than `most` values when written out.

    What is used several times counts each time, and long text as several values: so it is when somebody copies it.
    """
    waiting = [(value, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
            raise Refused(f"it holds an integer of {value.bit_length()} bits; at most {LONGEST_INTEGER} are read")
        if isinstance(value, str | bytes):
            values += len(value) // _LONG_TEXT
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, list | tuple | set | frozenset):
            values += len(value)
            if depth == DEEPEST:
                raise Refused(f"its values are nested more than {DEEPEST} deep")
        if values > most:
            raise Refused(f"it unfolds to more than {most} values")
        if isinstance(value, list | tuple | set | frozenset):
            waiting.extend((item, depth + 1) for item in value)


class _Named:
    """A class or function that a pickle names, not looked up."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Made:
    """What a pickle wants made of a name."""


class _Tensor(_Made):
    """A tensor, whose numbers are there."""


class _Object(_Made):
    """An object of a class that the caller knows, which takes any attributes."""


class _Storage(_Made):
    """The numbers that tensors are views of; their count was checked against what the file holds."""

    def __init__(self, count: int, element_bytes: int) -> None:
        self.count = count
        self.element_bytes = element_bytes


class _Inspector(_Unpickler):
    """Follows a pickle of plain values; no name is looked up, nothing is called."""

    names: Collection[str] = ()
    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str) -> _Named:
        full_name = python3_name(module, name)
        if full_name not in self.names:
            raise Refused(f"it holds {full_name}; only tensors and plain values are loaded")
        return _Named(full_name)

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to objects outside of it")

    def made(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return _Made()

    def _make(self) -> None:
        arguments, named = self.stack.pop(), self.stack[-1]
        if not isinstance(named, _Named) or not isinstance(arguments, tuple):
            raise Refused("it calls what is not a function")
        self.stack[-1] = self.made(named.name, arguments)

    def _set_state(self) -> None:
        if not isinstance(self.stack.pop(), dict):  # from pairs, Python would make a table, whatever their keys
            raise Refused("it gives an object a state that is not a table")
        if not isinstance(self.stack[-1], _Object | dict):  # a tensor could be given other numbers, and more of them
            raise Refused("it changes what is not an object")

    def _with_keys(self, load: Callable[[Any], None], keys: slice) -> None:
        _check_keys(self.stack[keys])
        load(self)

    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)
    # Where keys are on the stack, whose part since the last mark is `self.stack`, for all that hash them.
    for _opcode, _keys in (
        (pickle.SETITEM, slice(-2, -1)),
        *((_code, slice(None, None, 2)) for _code in (pickle.SETITEMS, pickle.DICT)),
        *((_code, slice(None)) for _code in (pickle.ADDITEMS, pickle.FROZENSET)),
    ):
        dispatch[_opcode[0]] = lambda self, load=dispatch[_opcode[0]], keys=_keys: self._with_keys(load, keys)
    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = _make
    dispatch[pickle.BUILD[0]] = _set_state
    # Other ways to make objects, and the one opcode that reserves memory before it reads.
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


class _TorchInspector(_Inspector):
    """Follows the pickle inside a torch file, whose other members hold the tensors' numbers."""

    def __init__(self, content: bytes, sizes: Mapping[str, int], more_names: Collection[str]) -> None:
        super().__init__(content)
        self.names = {*_NAMES, *more_names}
        self._sizes = sizes
        self._counts: dict[str, int] = {}  # of numbers, by the member that holds them
        self._may_claim = _MOST_CLAIMS * sum(sizes.values()) + _SMALL
        self._may_encode = len(content)  # characters: each is in the pickle, unless it is encoded again and again

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _Named(name=kind), str(key), str(), int(count)) if kind in _ELEMENT_BYTES:
                held = self._sizes.get(f"data/{key}", 0)
                if not 0 <= count * _ELEMENT_BYTES[kind] <= held:
                    raise Refused(f"it claims {count} numbers where it holds {held} bytes")
                if self._counts.setdefault(key, count * _ELEMENT_BYTES[kind]) != count * _ELEMENT_BYTES[kind]:
                    raise Refused("it claims two sizes for the same numbers")  # torch believes the first
                return _Storage(count, _ELEMENT_BYTES[kind])
        raise Refused("it refers to objects outside of it")

    def made(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _ELEMENT_BYTES:
            raise Refused(f"it makes a {name} of its own")
        if name == _TABLE:
            if arguments:  # which would be hashed unseen
                raise Refused("it makes a table of something else than its items")
            return {}
        if name == _REBUILD_TENSOR:
            self._check_tensor(*arguments[:4])
            return _Tensor()
        if name == _PARAMETER and not isinstance(arguments[0], _Tensor):
            raise Refused("it makes a parameter of what is not a tensor")
        if name == _ENCODE:
            return self._encoded(*arguments)
        if name == _SIZE:
            _check_size(*arguments)
        return _Made() if name in _NAMES else _Object()

    def _encoded(self, text: Any, coding: Any) -> bytes:
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise Refused("it holds bytes in a coding of its own")  # some codings double what they are given
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


def _check_size(sizes: Any) -> None:
    if not isinstance(sizes, tuple) or len(sizes) > _MOST_DIMENSIONS or not all(type(n) is int for n in sizes):
        raise Refused("it holds a torch.Size that no tensor has")
