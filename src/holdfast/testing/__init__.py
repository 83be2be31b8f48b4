"""Public tools for testing: a simulator that runs the real core on a simulated machine in virtual time.

    python -m holdfast.testing.simulate --schedules 10000 --seed 0 --jobs 2

`schedules` draws a job and its faults from a seed, `machine` is what is true, `world` is the shell around `decide`,
`invariants` say what must hold after every event, `mutants` break the core to show that each of them can complain.
"""
