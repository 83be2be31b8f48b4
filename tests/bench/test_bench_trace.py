"""When a job counts as recovered."""

import pytest

from harness.trace import Traces
from overhead import role_of, tell_spares


class Ranks:
    def __init__(self, folder, world):
        self.folder = folder
        self.traces = Traces(str(folder), world)

    def write(self, rank, text):
        with open(self.folder / f"rank-{rank}.trace", "a") as file:
            file.write(text)
        self.traces.poll()


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path, 2)


def test_whole_when_the_last_rank_has_completed_a_step(ranks):
    assert ranks.traces.newest() == -1 and ranks.traces.whole_at(0) is None
    ranks.write(0, "# 10 0 1000\n1 2000\n2 3000\n")
    ranks.write(1, "# 11 0 1000\n")
    assert ranks.traces.whole_at(0) is None
    ranks.write(1, "1 2500\n")
    assert ranks.traces.whole_at(0) == 2500
    assert ranks.traces.steps(0) == 1


def test_recovered_in_the_first_incarnation_in_which_every_rank_stepped(ranks):
    for rank in (0, 1):
        ranks.write(rank, f"# {10 + rank} 0 1\n1 2\n")
    ranks.write(0, "# 20 1 5\n2 9\n")  # this attempt fails
    assert ranks.traces.recovered(after=0) is None
    ranks.write(0, "# 30 2 10\n2 20\n")
    ranks.write(1, "# 31 2 11\n2 25\n")
    assert ranks.traces.recovered(after=0) == (2, 25)
    assert ranks.traces.life(1, 2).pid == 31


def test_half_a_line_waits_for_its_end(ranks):
    ranks.write(0, "# 10 0 1000\n1 20")
    assert ranks.traces.life(0, 0).steps == []
    ranks.write(0, "00\n! 1 77\n")
    assert ranks.traces.life(0, 0).steps == [(1, 2000)]
    assert ranks.traces.life(0, 0).cpu == {1: 77}


def test_roles_are_read_from_titles_and_spares_told_from_the_nursery():
    titles = ["holdfast: nursery of j", "holdfast: nursery of j", "holdfast: store of j", "holdfast: warden of x", "sh"]
    found = tell_spares([{"pid": pid, "role": role_of(title)} for pid, title in enumerate(titles)])
    assert [process["role"] for process in found] == ["nursery", "spare", "keeper", "warden", "other"]
