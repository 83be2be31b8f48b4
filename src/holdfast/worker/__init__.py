"""What runs inside a training process, and the processes that become one.

Everything here is standard library only and never raises into the script: it must work in whatever interpreter the
user trains with, which need not be the one Holdfast itself is installed in.
"""
