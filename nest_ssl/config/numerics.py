"""The two numerics of a model: `exact` repeats NeMo's operations in NeMo's order, `fast` is free to reorder them."""

from typing import Literal

Numerics = Literal["exact", "fast"]
