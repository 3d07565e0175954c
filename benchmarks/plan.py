"""The measurements: the sides, clips and numbers of steps of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.corpus import Clip, Corpus
from benchmarks.job import WARM_UP, Implementation, Kind
from nest_ssl.memory import machine_memory

WARM_UP_CLIP = 3.0  # seconds
PADDED_BATCH = (20.0, 8.0, 5.0, 4.0, 3.0, 3.0, 2.0, 2.0)  # seconds: one long clip among short ones
STOCK_BATCH = 8
# bytes that NeMo needs to train Large on clips of a minute: for one clip, and for everything else
MINUTE_MEMORY, MODEL_MEMORY = 3.5e9, 3e9


@dataclass(frozen=True)
class Side:
    """One way to train."""

    name: str
    implementation: Implementation
    overrides: tuple[str, ...] = ()
    buckets: bool = False  # this side makes its batches itself, from the whole corpus
    environment: tuple[tuple[str, str], ...] = ()  # variables of its process

    @property
    def skips_padding(self) -> bool:
        return self.buckets or "model.numerics=fast" in self.overrides


NEMO = Side("NeMo", "nemo")
EXACT = Side("exact", "nest_ssl")
FAST = Side("fast", "nest_ssl", ("model.numerics=fast",))
# NeMo's own way around padding
LHOTSE = Side(
    "NeMo, lhotse",
    "nemo",
    (
        "model.train_ds.use_lhotse=true",
        "model.train_ds.use_bucketing=true",
        "model.train_ds.num_buckets=10",
        "model.train_ds.batch_duration=60",
        "model.train_ds.batch_size=null",
        "model.train_ds.shuffle=true",
    ),
    buckets=True,
)
BF16 = ("trainer.precision=bf16-mixed",)  # only where the processor multiplies it
NEMO_BF16 = Side("NeMo, bf16-mixed", "nemo", BF16)
FAST_BF16 = Side("fast, bf16-mixed", "nest_ssl", (*FAST.overrides, *BF16))
# a setting of the user, with the runtime's default: our own does not take effect
LONG_WAITS = Side("fast, OpenMP's default", "nest_ssl", FAST.overrides, environment=(("KMP_BLOCKTIME", "200"),))
SIDES = {side.name: side for side in (NEMO, LHOTSE, NEMO_BF16, EXACT, FAST, FAST_BF16, LONG_WAITS)}
THREE = (NEMO, EXACT, FAST)
FIVE = (NEMO, NEMO_BF16, EXACT, FAST, FAST_BF16)
ALL = (NEMO, LHOTSE, *FIVE[1:])
OURS = (EXACT, FAST)


@dataclass(frozen=True)
class Measurement:
    """One measurement, made by each side in turn, `rounds` times."""

    name: str
    metric: str  # the number that is compared
    clips: float | tuple[float, ...]  # all clips up to this length in seconds, or exactly these lengths in this order
    sides: tuple[Side, ...] = THREE
    kind: Kind = "train"
    size: str = "large"
    batch_size: int = 8
    steps: int = 6
    rounds: int = 1
    stages: bool = False
    matrix_peak: bool = False
    busy: bool = False  # another program computes on every core meanwhile
    overrides: tuple[str, ...] = ()

    def choose(self, corpus: Corpus, round_number: int) -> list[Clip]:
        """Return the clips of a round, warm-up first; each round has the same lengths in another order.

        If all clips have one length, so has the warm-up, so that memory of that size is allocated before the timing.
        """
        one_length = isinstance(self.clips, tuple) and len(set(self.clips)) == 1
        length = self.clips[0] if one_length else WARM_UP_CLIP  # type: ignore[index]
        warm_up = corpus.cut([length] * WARM_UP * self.batch_size)
        if isinstance(self.clips, tuple):
            return [*warm_up, *corpus.cut(self.clips)]
        count = self.batch_size * (self.steps if self.kind in ("train", "ablation") else 6)
        return [*warm_up, *corpus.clips_to(self.clips, count, order=round_number)]


def _same(length: float, batch_size: int, steps: int) -> tuple[float, ...]:
    return (length,) * batch_size * steps


def plan(quick: bool, with_nemo: bool = True, with_bf16: bool = True) -> list[Measurement]:
    """Return all measurements; a quick plan has fewer of them, with fewer steps."""

    def wanted(side: Side) -> bool:
        return (with_nemo or side.implementation != "nemo") and (with_bf16 or side not in (NEMO_BF16, FAST_BF16))

    chosen = _quick() if quick else _full()
    return [replace(m, sides=tuple(filter(wanted, m.sides))) for m in chosen]


def _full() -> list[Measurement]:
    long_batch = batch_size_to_60()
    lengths, batch_sizes = (5.0, 10.0, 20.0, 40.0), (1, 2, 8)
    return [
        Measurement("first-step", "first_step_seconds", 20.0, kind="first_step", rounds=3),
        Measurement("data", "items_per_second", 20.0, kind="data", size="small", steps=5, rounds=2),
        Measurement("training-large-20", "rate", 20.0, ALL, rounds=2),
        Measurement("training-small-20", "rate", 20.0, ALL, size="small", steps=8, rounds=2),
        Measurement("training-large-60", "rate", 60.0, FIVE, batch_size=long_batch, rounds=3),
        Measurement("training-small-60", "rate", 60.0, FIVE, size="small", batch_size=long_batch, steps=8, rounds=2),
        _unpadded("large", steps=3),
        _unpadded("small", steps=4),
        Measurement("stages", "rate", 20.0, steps=4, stages=True),
        Measurement("ablation", "seconds", 20.0, (FAST,), kind="ablation", steps=3),
        Measurement("watching", "share_10", _same(5.0, 2, 4), OURS, "watching", "small", 2, steps=60, rounds=3),
        *(_shared(busy) for busy in (False, True)),
        Measurement("memory", "peak_gigabytes", PADDED_BATCH * 2, steps=2),
        Measurement("saving", "saving_seconds", _same(2.0, 1, 4), kind="save", batch_size=1, steps=2, rounds=2),
        *(_growth(4, length) for length in lengths),
        *(_growth(size, 10.0) for size in batch_sizes),
    ]


def _unpadded(size: str, steps: int) -> Measurement:
    """Return a measurement of batches without padding, beside the speed of this machine's matrix products."""
    clips = _same(10.0, STOCK_BATCH, steps)
    return Measurement(f"unpadded-{size}", "rate", clips, FIVE, size=size, steps=steps, rounds=3, matrix_peak=True)


def _shared(busy: bool) -> Measurement:
    """Return a measurement of short steps, in which threads often wait for each other, alone or beside programs."""
    name, sides = ("shared-busy" if busy else "shared-idle"), (NEMO, EXACT, FAST, LONG_WAITS)
    return Measurement(name, "rate", _same(3.0, 4, 8), sides, "train", "small", 4, steps=8, rounds=3, busy=busy)


def _growth(clips: int, length: float) -> Measurement:
    """Return the measurement of one point of the curve of step costs."""
    name = f"growth-{clips}-{length:g}"
    return Measurement(name, "rate", _same(length, clips, 3), batch_size=clips, steps=3, rounds=2)


def _quick() -> list[Measurement]:
    return [
        Measurement("first-step", "first_step_seconds", 20.0, kind="first_step"),
        Measurement("data", "items_per_second", 20.0, kind="data", size="small", steps=2),
        Measurement("training-large-20", "rate", 20.0, ALL, steps=2),
        Measurement("training-small-60", "rate", 60.0, size="small", batch_size=batch_size_to_60(), steps=4),
        Measurement("unpadded-large", "rate", _same(10.0, 8, 1), (FAST,), steps=1, matrix_peak=True),
        Measurement("stages", "rate", 20.0, (NEMO, FAST), size="small", steps=2, stages=True),
        Measurement("memory", "peak_gigabytes", PADDED_BATCH, (NEMO, FAST), steps=1),
        Measurement("saving", "saving_seconds", _same(2.0, 1, 4), kind="save", size="small", batch_size=1, steps=2),
    ]


def batch_size_to_60() -> int:
    """Return the stock batch size, or what NeMo has memory for if every clip lasts a minute; at least half of it."""
    return min(STOCK_BATCH, max(STOCK_BATCH // 2, int((machine_memory() - MODEL_MEMORY) / MINUTE_MEMORY)))


def overrides_for(
    measurement: Measurement, side: Side, manifest: Path, noise_manifest: Path, workers: int
) -> tuple[str, ...]:
    """Return the changes to the stock configuration for one side and measurement."""
    validation = (
        ("model.validation_ds=null",)
        if measurement.kind not in ("save", "watching")
        else (
            f"model.validation_ds.manifest_filepath={manifest}",
            f"model.validation_ds.batch_size={measurement.batch_size}",
            f"model.validation_ds.num_workers={workers}",
        )
    )
    return (
        f"model.train_ds.manifest_filepath={manifest}",
        f"model.train_ds.noise_manifest={noise_manifest}",
        f"model.train_ds.batch_size={measurement.batch_size}",
        f"model.train_ds.num_workers={workers}",
        "model.train_ds.shuffle=false",
        *validation,
        *measurement.overrides,
        *side.overrides,
    )
