"""Draws README's figure from seed 0 of its sweep.

simsplit sweep scenarios/backdoor.yaml --jobs 2 --set 'sweep.seed=[0, 1, 2]' --out runs/seeds
python docs/backdoor.py runs/seeds docs/backdoor.png
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from simsplit import Run
from simsplit.report import figures

folder, picture = map(Path, sys.argv[1:])
cells = {
    "Raw": "method=raw,fraction={},seed=0",
    "LightSplit, ratio 16": "method=lightsplit-16-fixed,fraction={},seed=0",
}
clean = {name: Run.load(folder / cell.format(0)) for name, cell in cells.items()}
attacked = Run.load(folder / cells["LightSplit, ratio 16"].format(0.1))

_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=(2, 3))
figures.bytes_by_leg(clean, left)
left.set(title="What crosses the cut, by leg", xlim=(-0.5, 2.7))
left.legend(frameon=False, loc="upper right", reverse=True)
figures.signal(attacked, "within_class_payload", ax=right)
right.set(title="What a detector sees of each client (LightSplit, ratio 16)")
right.set_ylabel("within-class distance, robust z")
right.plot([], [], color=figures.HONEST, marker=".", label="the nine honest clients")
right.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.56))
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.tight_layout()
figures.saved(figures.drawn(left), picture)
