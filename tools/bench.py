"""Measure what simsplit costs, as ratios to plain work on the same machine.

python tools/bench.py                      # all benches
python tools/bench.py scale deploy --quick
python tools/bench.py language --model FOLDER
"""

import argparse
import sys

from benches import choose_benches

from simsplit.commands.options import print_json
from simsplit.errors import SimsplitError
from simsplit.showing.saying import say
from simsplit.terminal.printing import print_table


def main(words: list[str] | None = None) -> int:
    """Run the benches that are named, and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="overhead, scale, detectors, attacks, ...; all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--model", help="measure writing through its cut, and attacks on texts")
    parser.add_argument("--json", action="store_true", help="print figures by bench and table")
    options = parser.parse_args(words)
    try:
        chosen = choose_benches(options.names, options.model)
    except SimsplitError as error:
        parser.error(str(error))
    document: dict[str, dict[str, object]] = {}
    for name, bench in chosen.items():
        for table, figures in bench(options.device, options.quick, say):
            document.setdefault(name, {})[table.title] = figures
            if not options.json:
                print_table(table, "table")
    if options.json:
        print_json(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
