"""Write the parts of pages that are made from measurements anew: a part of `make docs`."""

from making.blocks import fill_files

for name in fill_files():
    print(f"{name}: written anew from results/")  # noqa: T201 - a script
