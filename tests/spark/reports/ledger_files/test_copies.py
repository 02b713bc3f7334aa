"""Which of the files that were given are copies of others."""

from __future__ import annotations

from pairbus.spark.reports.ledger_files.copies import Contents, copies


def contents(pid: int = 1, started: float = 5.0, **places: tuple[float, int]) -> Contents:
    return Contents("client", pid, started, {("contoso", False, name): found for name, found in places.items()})


def test_a_copy_counts_once_whatever_it_is_called() -> None:
    whole = contents(orders=(10.0, 6), news=(11.0, 2))
    assert copies({"a": whole, "b": whole, "c": contents(2, orders=(10.0, 6))}) == {"b": "a"}


def test_of_a_file_and_the_beginning_of_it_the_longer_one_counts() -> None:
    cut, whole = contents(orders=(10.0, 4)), contents(orders=(10.0, 6), news=(11.0, 2))
    assert copies({"cut": cut, "whole": whole}) == {"cut": "whole"}
    assert copies({"empty": contents(), "cut": cut, "whole": whole}) == {"cut": "whole", "empty": "whole"}


def test_files_of_other_writers_times_or_contents_are_told_apart() -> None:
    one = contents(orders=(10.0, 6))
    assert copies({"a": one, "b": contents(started=5.5, orders=(10.0, 6))}) == {}
    assert copies({"a": one, "b": one._replace(writer="syphon")}) == {}
    # A clock that stood still between two files of one process
    assert copies({"a": one, "b": contents(orders=(12.0, 3))}) == {}
    assert copies({"a": one, "b": contents(news=(10.0, 6))}) == {}
