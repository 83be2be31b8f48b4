"""One seed, one trace: in another process, with another hash seed."""

import os
import subprocess
import sys

from holdfast.testing.schedules import draw
from holdfast.testing.simulate import digest, play

SCHEDULES = 150


def fingerprint(hash_seed):
    return subprocess.run(
        [sys.executable, "-m", "holdfast.testing.simulate", "--digest", "--schedules", str(SCHEDULES)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_two_hash_seeds_give_the_same_trace():
    assert fingerprint("1") == fingerprint("2") == digest(range(SCHEDULES))


def test_a_digest_tells_schedules_apart():
    assert digest([1]) != digest([2])


def test_a_seed_is_a_schedule():
    assert draw(7) == draw(7)
    assert play(draw(7)) == play(draw(7))
