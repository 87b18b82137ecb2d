"""Runs a test file for Bazel with pytest, and writes the report that Bazel expects."""

import os
import sys

import pytest


def main() -> int:
    """Runs pytest, and returns its exit code."""
    options = ["-p", "no:cacheprovider"]
    if "XML_OUTPUT_FILE" in os.environ:
        options.append("--junitxml=" + os.environ["XML_OUTPUT_FILE"])
    if "TEST_TMPDIR" in os.environ:
        options.append("--basetemp=" + os.path.join(os.environ["TEST_TMPDIR"], "pytest"))
    # Bazel's flag --test_filter sets this variable.
    if os.environ.get("TESTBRIDGE_TEST_ONLY"):
        options.append("-k" + os.environ["TESTBRIDGE_TEST_ONLY"])
    return int(pytest.main([*options, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
