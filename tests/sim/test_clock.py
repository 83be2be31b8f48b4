"""Virtual time."""

from holdfast.testing.clock import Clock


def test_calls_come_in_the_order_of_time_and_of_setting():
    clock, seen = Clock(), []
    clock.after(2.0, seen.append, "late")
    clock.after(1.0, seen.append, "first")
    clock.after(1.0, seen.append, "second")
    while clock.advance():
        seen.append(clock.now)
    assert seen == ["first", 1.0, "second", 1.0, "late", 2.0]


def test_nothing_left_is_said():
    assert not Clock().advance()
