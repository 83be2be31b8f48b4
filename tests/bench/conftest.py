"""The benchmarks are scripts, not part of the package: their folder is put on the path here."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))
