"""Figures as files; without TensorFlow, which takes seconds to import."""

import io
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tff_agnostic.files import atomic_file

_DPI = 120


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in PNG format; equal figures have equal files."""
    content = io.BytesIO()
    figure.set_dpi(_DPI)
    # `savefig` writes the same bytes, and draws twice for them.
    FigureCanvasAgg(figure).print_png(content, metadata={"Software": None})
    with atomic_file(path) as file:
        file.write(content.getbuffer())
