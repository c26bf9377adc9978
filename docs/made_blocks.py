"""Write the parts of pages that are made from measurements anew: a part of `make docs`."""

import argparse

from making.blocks import BLOCKS, fill_files

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--only", choices=sorted(BLOCKS), help="this block alone, and no figure")
for name in fill_files(parser.parse_args().only):
    print(f"{name}: written anew from results/")  # noqa: T201 - a script
