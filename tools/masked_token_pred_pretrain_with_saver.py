#!/usr/bin/env python3
"""Pre-train NEST with NeMo and record every step that `save_steps` names, for comparison with train_with_saver.py.

It runs in any environment that has NeMo, from here or copied into a NeMo checkout next to this project. It needs only
the folder `nest_ssl/apps/alignment`, which it searches in the folders above; nest_ssl need not be installed.

python tools/masked_token_pred_pretrain_with_saver.py --config-path examples/asr/conf/ssl/nest \
    --config-name nest_fast-conformer trainer.max_steps=1 output_dir=./saved_nemo_outputs seed=42 save_steps=0 \
    model.train_ds.manifest_filepath=nest_ssl_project/data/dummy_ssl/train_manifest.json
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

NEEDED = Path("nest_ssl", "apps", "alignment", "nemo_side.py")


def find_nemo_side() -> Path:
    """Return the real script, of this checkout or of a `nest_ssl_project` above this file or the working directory."""
    for above in (*Path(__file__).resolve().parents, Path.cwd(), *Path.cwd().parents):
        for base in (above, above / "nest_ssl_project"):
            if (base / NEEDED).is_file():
                return base / NEEDED
    print(
        f"error: {NEEDED} of nest_ssl was not found above {Path(__file__).parent}; put a checkout of it there",
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    runpy.run_path(str(find_nemo_side()), run_name="__main__")
