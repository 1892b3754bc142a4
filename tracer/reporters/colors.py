"""The colours of the page and of pictures, by their meaning, on white and on black.

Blues are for counts, grey and pale blue for steps that update nothing by design. Oddities have
colours that colour-blind readers can tell apart from these. Marks also differ in height and edge.
"""

WARNING, ERROR = "bold yellow", "bold red"
"""The styles of the text report: for possible faults, as skipped steps, and for certain ones."""

LIGHT = {
    "level0": "#9ecae8",
    "level1": "#5aa2d4",
    "level2": "#2277b4",
    "level3": "#0d5288",
    "level4": "#06315a",
    "never": "#1c1c20",
    "skipped": "#d55e00",
    "others": "#e8b100",
    "some": "#f3dd8f",
    "expected": "#b4b9be",
    "part": "#d3e6f5",
    "dense": "#2277b4",
    "sparse": "#d98200",
    "unchanged": "#ffffff",
    "partly": "#9aa1a9",
    "infinite": "#a5005f",
    "thin": "#24292f",
    "thick": "#ffffff",
}
DARK = {
    "level0": "#1f4f78",
    "level1": "#2a6ea6",
    "level2": "#3f8ecb",
    "level3": "#6cb0e6",
    "level4": "#a3d0f5",
    "never": "#ffffff",
    "skipped": "#f2600c",
    "others": "#f2c744",
    "some": "#7d6a30",
    "expected": "#5c636b",
    "part": "#16304a",
    "dense": "#57a8de",
    "sparse": "#f0a33a",
    "unchanged": "#0f141a",
    "partly": "#737b85",
    "infinite": "#ff8ac4",
    "thin": "#e6edf3",
    "thick": "#0f141a",
}
