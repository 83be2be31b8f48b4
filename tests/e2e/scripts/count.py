"""Counts to N, one number each 50 ms, and resumes where its last line says. Standard library only."""

import os
import sys
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
until = int(sys.argv[1])
path = os.path.join(os.environ["SCRATCH"], f"count-{rank}")
with open(path, "a+") as file:
    file.seek(0)
    lines = file.read().split()
    start = int(lines[-1]) + 1 if lines else 0
    for number in range(start, until):
        print(f"rank {rank} of {world} counts {number}")
        file.write(f"{number}\n")
        file.flush()
        time.sleep(0.05)
print(f"rank {rank} done")
