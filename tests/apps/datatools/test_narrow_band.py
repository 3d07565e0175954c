"""`nest-ssl data check` names telephone speech in a set for 16 kHz."""

from __future__ import annotations

from pathlib import Path

from nest_ssl.apps.datatools.check import check_manifests
from nest_ssl.apps.datatools.check_lines import Rules


def test_a_check_counts_them_and_calls_them_a_problem_if_asked(mixed: str, tmp_path: Path) -> None:
    findings = check_manifests([mixed], Rules())
    assert (findings.narrow.lines, findings.narrow.measured, findings.kinds.total()) == (5, 12, 0)
    assert findings.narrow.example == f"{mixed}:1"
    quick = check_manifests([mixed], Rules(quick=True))
    assert (quick.narrow.lines, quick.narrow.example) == (1, f"{mixed}:2")
    asked = check_manifests([mixed], Rules(min_bandwidth=4500), clean=[tmp_path / "wide.json"])
    assert dict(asked.kinds) == {"narrow_band": 5}
    assert "0.wav: holds no sound above 4000 Hz" in asked.examples["narrow_band"][0].message
    assert len((tmp_path / "wide.json").read_text().splitlines()) == 7
    assert check_manifests([mixed], Rules(sample_rate=8000)).narrow.lines == 0  # of a model of 8 kHz
