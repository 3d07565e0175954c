"""With the same seed, shards have the same order as in WebDataset, which NeMo seeds by the time of day."""

from __future__ import annotations

import json
import random
import subprocess

from nest_ssl.data.tarred.dataset import shuffled

CASES = [(count, size, seed) for count in (0, 1, 2, 9, 250) for size in (0, 1, 2, 5, 100, 2048) for seed in (1, 2)]
THEIRS = """
import json, random, sys
from webdataset.filters import _shuffle
cases = json.load(sys.stdin)
print(json.dumps([list(_shuffle(iter(range(n)), size, rng=random.Random(seed))) for n, size, seed in cases]))
"""


def test_shards_are_shuffled_as_webdataset_does(nemo: str) -> None:
    done = subprocess.run([nemo, "-c", THEIRS], input=json.dumps(CASES), capture_output=True, text=True, check=True)
    ours = [shuffled(range(count), size, random.Random(seed)) for count, size, seed in CASES]
    assert ours == json.loads(done.stdout.splitlines()[-1])
