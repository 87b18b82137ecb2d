"""Takes screenshots of a report's first screen, on light and dark backgrounds, with Chromium.

    python -m tools.docs.picture runs/compare-digits-001/report.html docs/images/report

This command writes docs/images/report_light.png and docs/images/report_dark.png.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Values of Chromium's setting `preferredColorScheme`.
_GROUNDS = {"dark": 0, "light": 1}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Writes both screenshots, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("report", type=Path, help="report.html of a run or a study")
    parser.add_argument("picture", type=Path, help="path of the pictures without _light.png")
    parser.add_argument("--width", type=int, default=900, help="width of the page in pixels")
    parser.add_argument("--height", type=int, default=1000, help="height of the page in pixels")
    given = parser.parse_args(arguments)
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"expected {' or '.join(_BROWSERS)} on PATH, found none", file=sys.stderr)
        return 2
    if not given.report.is_file():
        print(f"{given.report}: expected a report, found no file", file=sys.stderr)
        return 2
    for ground, value in _GROUNDS.items():
        with tempfile.TemporaryDirectory() as profile:
            path = given.picture.with_name(f"{given.picture.name}_{ground}.png").resolve()
            subprocess.run(
                [
                    browser,
                    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                    f"--user-data-dir={profile}",
                    f"--blink-settings=preferredColorScheme={value}",
                    f"--window-size={given.width},{given.height}",
                    f"--screenshot={path}",
                    given.report.resolve().as_uri(),
                ],
                check=True,
                capture_output=True,
                timeout=120,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
