"""The tar files of a data set: expand their names, divide them among ranks and workers, and shuffle them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeVar

from nest_ssl.errors import ConfigError

Item = TypeVar("Item")
ShardStrategy = Literal["scatter", "replicate"]

# shells and job schedulers interpret braces, so NeMo also accepts _OP_ and _CL_
_RANGE = re.compile(r"(?:\{|\(|\[|<|_OP_)(\d+)\.\.(\d+)(?:\.\.(\d+))?(?:\}|\)|\]|>|_CL_)|\{([^{}]*,[^{}]*)\}")
_ELSEWHERE = re.compile(r"pipe:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MOST_FILES = 1_000_000
_FIRST_WAIT = 100  # shards; WebDataset's


def expand_paths(paths: Sequence[str], key: str) -> list[str]:
    """Return every file that the paths name: `audio__OP_0..2_CL_.tar`, also in braces or brackets, names three files.

    `{a,b}.tar` names two. `key` is the configuration key of the paths, for errors.
    """
    for path in paths:
        if _ELSEWHERE.match(path):
            raise ConfigError(f"{key}: is {path!r}; expected a file; commands and URLs are not read, copy it here")
    expanded = list(islice((name for path in paths for name in _expanded(path)), _MOST_FILES + 1))
    if len(expanded) > _MOST_FILES:
        raise ConfigError(f"{key}: names more than {_MOST_FILES} files: {paths[0]!r}; check its ranges")
    return expanded


def _expanded(path: str) -> Iterator[str]:
    found = _RANGE.search(path)
    if found is None:
        yield path
        return
    head, tail = path[: found.start()], path[found.end() :]
    for name in found[4].split(",") if found[4] is not None else _numbers(*found.group(1, 2, 3)):
        for rest in _expanded(tail):
            yield f"{head}{name}{rest}"


def _numbers(first: str, last: str, step: str | None) -> Iterator[str]:
    is_padded = any(number[0] == "0" and len(number) > 1 for number in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    stride = max(1, int(step or 1))
    up = int(last) >= int(first)
    for number in range(int(first), int(last) + (1 if up else -1), stride if up else -stride):
        yield f"{number:0{width}d}"


def share_of(count: int, strategy: ShardStrategy, rank: int, world_size: int, worker: int, workers: int) -> range:
    """Return which of `count` shards a worker of a rank reads.

    `scatter` gives each rank the same number of consecutive shards and leaves out the remainder; `replicate` gives all
    shards to each rank. A worker reads every n-th shard of its rank.
    """
    if strategy == "replicate":
        return range(worker, count, workers)
    each = count // world_size
    return range(each * rank + worker, each * (rank + 1), workers)


def shuffled(items: Sequence[Item], buffer_size: int, generator: random.Random) -> list[Item]:
    """Shuffle as WebDataset does: fill a buffer and take every next item from a random position in it.

    With a buffer of one or none, the order is kept.
    """
    source, waiting, order = iter(items), list[Item](), list[Item]()
    enough = min(_FIRST_WAIT, buffer_size)
    for item in source:
        waiting.append(item)
        if len(waiting) < buffer_size:
            waiting.extend(islice(source, 1))
        if len(waiting) >= enough:
            order.append(_taken(waiting, generator))
    while waiting:
        order.append(_taken(waiting, generator))
    return order


def _taken(waiting: list[Item], generator: random.Random) -> Item:
    index = generator.randint(0, len(waiting) - 1)
    waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()
