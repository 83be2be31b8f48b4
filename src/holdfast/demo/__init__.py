"""`holdfast demo`: one training run without faults, the same run under a plan of kills, and what the files say of both.

The run is a real one (train.py, which knows nothing of Holdfast), the kills go through the operating system, and every
figure of the verdict is computed from what the two runs wrote.
"""
