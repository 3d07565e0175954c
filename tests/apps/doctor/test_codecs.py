from __future__ import annotations

from nest_ssl.apps.doctor.machine import KINDS, check_codecs, decodable


def test_every_usual_kind_of_file_is_written_and_decoded_here() -> None:
    assert decodable() == list(KINDS)
    assert check_codecs().state == "ok"


def test_a_kind_that_libsndfile_does_not_know_is_left_out() -> None:
    assert decodable({"wav": KINDS["wav"], "new": ("new", "NEW", "UNHEARD_OF")}) == ["wav"]
