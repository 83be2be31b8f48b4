"""Does nothing, in the way that is asked for, for ever. Torch-free, so that a job of it starts at once."""

import sys
import threading
import time


def sleeps():
    time.sleep(1000)


def computes():
    number = 0
    while True:
        number += 1


def waits():
    threading.Thread(target=sleeps, daemon=True).start()
    threading.Event().wait()


def allocates():
    kept = []
    while True:
        kept.append(bytearray(100_000))
        time.sleep(0.005)


print("begun", flush=True)
{"sleeps": sleeps, "computes": computes, "waits": waits, "allocates": allocates}[sys.argv[1]]()
