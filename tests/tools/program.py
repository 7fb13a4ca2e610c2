# SPDX-License-Identifier: Apache-2.0
"""The program beside the Python package, for tests that compare the two."""
import os

PROGRAM = os.environ["KF_PROGRAM"]
# AddressSanitizer's runtime is loaded first into Python, which was not built with it; the program has its own.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
