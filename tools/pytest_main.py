"""Runs the test file that Bazel names with pytest, and reports in Bazel's form."""

import os
import sys

import pytest


def main() -> int:
    """Returns pytest's exit code."""
    options = ["-p", "no:cacheprovider"]
    if "XML_OUTPUT_FILE" in os.environ:
        options.append("--junitxml=" + os.environ["XML_OUTPUT_FILE"])
    if "TEST_TMPDIR" in os.environ:
        options.append("--basetemp=" + os.path.join(os.environ["TEST_TMPDIR"], "pytest"))
    # Set by Bazel's --test_filter.
    if os.environ.get("TESTBRIDGE_TEST_ONLY"):
        options.append("-k" + os.environ["TESTBRIDGE_TEST_ONLY"])
    return int(pytest.main([*options, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
