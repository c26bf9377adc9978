"""Draws the gallery's pictures from runs of the shipped scenarios, each in a folder of its name.

simsplit run quickstart --out runs/quickstart
simsplit sweep table --out runs/table
simsplit sweep digits-table --out runs/digits-table
python docs/pictures.py runs docs/gallery
"""

import subprocess
import sys
from pathlib import Path

from PIL import Image

PLOTS = {
    "table": "ridge_mse,test_accuracy",
    "digits-table": "ridge_mse,test_accuracy",
}
"""Of sweeps, the two figures by which `simsplit compare` draws its settings."""
OF_RUNS = ("learning_curve", "bytes_by_leg")
HEIGHT, COLOURS = 380, 64


def pictures_of(run: Path) -> list[Image.Image]:
    """Return what a finished run drew of itself, or a sweep's settings by two figures."""
    if run.name not in PLOTS:
        return [Image.open(run / "figures" / f"{name}.png") for name in OF_RUNS]
    file = run / "plot.png"
    command = ["compare", run, "--plot", PLOTS[run.name], "--out", file]
    subprocess.run([sys.executable, "-m", "simsplit", *command], check=True)
    return [Image.open(file)]


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Join pictures of one height, side by side."""
    scaled = [one.resize((one.width * HEIGHT // one.height, HEIGHT)) for one in pictures]
    whole = Image.new("RGB", (sum(one.width for one in scaled), HEIGHT), "white")
    for index, one in enumerate(scaled):
        whole.paste(one.convert("RGB"), (sum(each.width for each in scaled[:index]), 0))
    return whole


runs, out = map(Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
for folder in sorted(each for each in runs.iterdir() if each.is_dir()):
    beside(pictures_of(folder)).quantize(COLOURS).save(out / f"{folder.name}.png", optimize=True)
