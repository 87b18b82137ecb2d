"""A drawing of matplotlib's in fewer bytes that looks the same.

matplotlib writes a millionth of a point, a list of ten fonts with every word, and a name for
everything. A page of many domains and algorithms has thousands of each.
"""

import re
from collections import Counter

_TAG = re.compile(r"<[^>]+>")
_NUMBER = re.compile(r"(?<![\w#.])-?\d+\.\d+(?![\w.])")
_FONTS = re.compile(r"font-family:[^;\"]*|(?<=px )'[^;\"]*")
_SHORT_FONTS = "'DejaVu Sans',Verdana,sans-serif"
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r"#([\w-]+)")
_BETWEEN_TAGS = re.compile(r">\s+<")
_AFTER_STOP = re.compile(r"([;:]) +")
_STYLE = re.compile(r' style="([^"]*)"')
_GROUP_OF_ONE = re.compile(r"<g>(<[^<>]*/>)</g>")


def compact_svg(svg: str) -> str:
    """Returns the drawing with coordinates in hundredths of a point; its texts are the same.

    Args:
        svg: What matplotlib wrote.
    """
    referred = {name for tag in _TAG.findall(svg) for name in _REFERENCE.findall(tag)}

    def short(match: "re.Match[str]") -> str:
        tag = match[0]
        if tag.startswith(("<?", "<!")):
            return tag
        tag = _ID.sub(lambda found: found[0] if found[1] in referred else "", tag)
        tag = _FONTS.sub(_fonts, tag)
        if 'style="' in tag:
            tag = _AFTER_STOP.sub(r"\1", tag)
        return _NUMBER.sub(_rounded, " ".join(tag.split()))

    return _grouped(_styles_as_classes(_BETWEEN_TAGS.sub("><", _TAG.sub(short, svg))))


def _styles_as_classes(svg: str) -> str:
    counts = Counter(_STYLE.findall(svg))
    classes = {style: f"s{k}" for k, style in enumerate(s for s, n in counts.items() if n > 1)}
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())

    def named(match: "re.Match[str]") -> str:
        name = classes.get(match[1])
        return match[0] if name is None else f' class="{name}"'

    return _STYLE.sub(named, svg).replace("</style>", f"{rules}</style>", 1)


def _grouped(svg: str) -> str:
    count = 1
    while count:
        svg, count = _GROUP_OF_ONE.subn(r"\1", svg)
    return svg


def _fonts(match: "re.Match[str]") -> str:
    return f"{'font-family:' * match[0].startswith('font-family')}{_SHORT_FONTS}"


def _rounded(match: "re.Match[str]") -> str:
    value = float(match[0])
    # Scales and opacities are below 1.
    text = f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
