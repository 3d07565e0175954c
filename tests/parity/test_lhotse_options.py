"""Every option of NeMo's lhotse configuration is known here, and NeMo's defaults are not refused."""

from __future__ import annotations

import json
import subprocess

from nest_ssl.config.schema import LhotseSettings, keys_of

DEFAULTS = """
import json
from nemo.collections.common.data.lhotse.dataloader import LhotseDataLoadingConfig
print("\\n" + json.dumps(vars(LhotseDataLoadingConfig()), default=str))
"""
# NeMo fills buckets in a thread, so batches differ between runs
UNLIKE_NEMO = {"concurrent_bucketing"}


def test_no_option_of_nemo_is_unknown_and_none_of_its_defaults_refused(nemo: str) -> None:
    printed = subprocess.run([nemo, "-c", DEFAULTS], capture_output=True, text=True, check=True).stdout
    defaults = json.loads(printed.splitlines()[-1])
    assert len(defaults) > 80
    assert defaults.keys() <= set(keys_of(LhotseSettings))
    refused = {
        name for name, key in LhotseSettings.REFUSED.items() if name in defaults and defaults[name] not in key.off
    }
    assert refused == UNLIKE_NEMO
