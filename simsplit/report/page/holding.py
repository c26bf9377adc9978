"""The section on data tabulates who holds what: the samples of each client by class."""

from simsplit.report.html.markup import Markup, mark_up_rows, section, tag
from simsplit.report.html.subject import Subject
from simsplit.results import HOLDINGS

_CLIENTS, _CLASSES = 40, 20
"""The most rows and columns; more do not help a reader."""


def tabulate_holdings(subject: Subject) -> Markup:
    """Tabulate one run's training samples by client and class; nothing if it did not keep them."""
    run = subject.one
    if run is None or not (run.path / HOLDINGS).exists():
        return Markup()
    table = run.holdings.pivot_table(
        index="client", columns="class", values="samples", fill_value=0, aggfunc="sum"
    )
    named = dict(enumerate(run.data["classes"]))
    # Of very many classes, each client's total alone is shown.
    by_class = table if table.shape[1] <= _CLASSES else table.iloc[:, :0]
    numbers = [int(str(number)) for number in by_class]
    columns = ["client", *(named.get(number, str(number)) for number in numbers), "all"]
    none = tag("span", "0", class_="note")  # zeros stand back, so that gaps are seen
    rows = [
        [
            run.client_names.label(int(client)),
            *(str(int(count)) if count else none for count in by_class.loc[client]),
            str(int(table.loc[client].sum())),
        ]
        for client in table.index[:_CLIENTS]
    ]
    title = "training samples by client and class"
    if len(table) > _CLIENTS:
        title += f": the first {_CLIENTS} of {len(table)} clients"
    align = "l" + "r" * (len(columns) - 1)
    return section("Who holds what", mark_up_rows(columns, rows, align, title))
