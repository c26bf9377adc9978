"""What each party has of the same samples, and what is refused of groups, files and ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gists import says

from simsplit.assembly.ownership import Ownership
from simsplit.data.joined_tables import JoinedSource, load_portion
from simsplit.data.portions import ByParts
from simsplit.data.samples import IGNORED, DataInfo, Samples
from simsplit.errors import SimsplitError
from simsplit.scenario import parse

BASE: dict[str, Any] = {
    "topology": "vertical",
    "model": {"kind": "mlp", "widths": [6, 8, 5]},
    "data": {"source": {"kind": "sklearn", "name": "iris"}},
}
WIDTHS = ["petal length (cm)", "petal width (cm)"]
LENGTHS = ["sepal length (cm)", "sepal width (cm)"]


def of_groups(groups: dict[str, list[str]], **others: Any) -> dict[str, Any]:
    data = {**BASE["data"], "partition": {"kind": "columns", "groups": groups}}
    return {**BASE, "data": data, **others}


def of_parts(**others: Any) -> dict[str, Any]:
    return {**BASE, "data": {"source": "digits", "partition": {"kind": "parts"}}, **others}


GOOD = {"a": WIDTHS, "b": LENGTHS}
GROUPS = "data.partition.groups"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": (of_groups({"a": WIDTHS, "b": [*LENGTHS, WIDTHS[0]]}), f"{GROUPS}.b ... group 'a'"),
    "misspelt": (of_groups({"a": ["petl length (cm)"], "b": LENGTHS}), f"{GROUPS}.a ... mean"),
    "left over": (of_groups({"a": WIDTHS, "b": LENGTHS[:1]}), f"{GROUPS}: ... {LENGTHS[1]}"),
    "no column": (of_groups({"a": [*WIDTHS, *LENGTHS], "b": []}), f"{GROUPS}.b ... party"),
    "no such column": (of_groups({"a": ["*"], "b": ["worst*"]}), f"{GROUPS}.b ... no column"),
    "no groups": (of_groups({}), f"{GROUPS} ... party"),
    "count": (of_groups(GOOD, clients={"count": 3}), "clients.count ... 2 ... 3"),
    "party": (of_groups(GOOD, vertical={"party": "c"}), "vertical.party ... 'c' ... a, b"),
    "number": (of_groups(GOOD, vertical={"party": 2}), "vertical.party ... 0 to 1 ... 2"),
    "no portions": ({**BASE, "data": {**BASE["data"], "partition": "iid"}}, "data.partition.kind"),
    "no parties": (of_groups(GOOD, topology="u_shaped"), "topology ... vertical"),
    "fields": ({"vertical": {"join": "sum"}}, "vertical ... u_shaped"),
    "heads": (of_groups(GOOD, clients={"heads": "shared"}), "clients.heads ... per_client"),
    "labels": (of_groups(GOOD, method=[{"kind": "wcc"}]), "method.0.kind ... labels"),
    "averages": (of_groups(GOOD, aggregation="splitfed_v2"), "aggregation.kind ... none"),
    "order": (of_groups(GOOD, schedule={"kind": "per_client"}), "schedule.kind ... round_robin"),
    "images": (of_groups(GOOD, data={**BASE["data"], "partition": {"kind": "parts"}}), "columns"),
    "sides": (
        of_parts(data={"source": "digits", "partition": {"kind": "parts", "parts": 3}}),
        "data.partition.parts ... 28 ... 3",
    ),
    "trunk": (
        of_parts(
            data={"source": {"kind": "digits", "size": 64}, "partition": {"kind": "parts"}},
            model={"kind": "resnet18"},
        ),
        "vertical.join ... sum or mean",
    ),
    "mirrored": (of_parts(evaluate={"mirrored": True}), "evaluate.mirrored ... false"),
    "lengths": (of_groups(GOOD, train={"group_by_length": True}), "train.group_by_length ... rows"),
    "drawn": (
        of_groups(GOOD, train={"dp": {"multiplier": 1.0, "sampling": "poisson"}}),
        "train.dp.sampling ... other samples",
    ),
    "fraction": (of_groups(GOOD, cohort={"fraction": 0.5}), "cohort.fraction ... vertical.absent"),
    "gradients": (
        of_groups(
            GOOD,
            method=[{"kind": "private_backprop"}],
            model={**BASE["model"], "learns": ["head", "tail"]},
        ),
        "method.0.kind ... several",
    ),
}


def build(values: dict[str, Any]) -> None:
    """Read a scenario, its data, and build all that trains."""
    scenario = parse(values)
    Ownership(scenario, scenario.prepare_data().info, torch.device("cpu"))


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_parties_is_refused_by_field(name: str) -> None:
    values, gist = WRONG[name]
    with pytest.raises(SimsplitError) as caught:
        build(values)
    assert says(str(caught.value), gist), str(caught.value)


def test_parts_of_an_image_are_its_quadrants() -> None:
    images = torch.arange(2 * 16, dtype=torch.uint8).view(2, 1, 4, 4)
    samples = Samples(images, torch.tensor([0, 1]))
    parts = ByParts(parts=4, by="patches").cut(DataInfo((1, 4, 4), 10), ())
    taken = [part.take(samples) for part in parts]
    assert [each.inputs[0, 0].tolist() for each in taken] == [
        [[0, 1], [4, 5]],
        [[2, 3], [6, 7]],
        [[8, 9], [12, 13]],
        [[10, 11], [14, 15]],
    ]
    assert all((each.labels == IGNORED).all() for each in taken)


def write_files(folder: Path, **changes: pd.DataFrame) -> dict[str, str]:
    """Write a bank's and a shop's rows; each has ids that the other lacks."""
    bank = pd.DataFrame({"id": [3, 1, 2, 9], "income": [30.0, 10.0, 20.0, 90.0]})
    shop = pd.DataFrame({"id": [2, 3, 1, 7], "items": [2, 3, 1, 7], "bought": [*"yny", "n"]})
    frames = {"bank": bank, "shop": shop, **changes}
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: str(folder / f"{name}.csv") for name in frames}


def of_files(files: dict[str, str], **others: Any) -> dict[str, Any]:
    source = {"kind": "joined", "files": files, "target": "bought", "test_fraction": 0.34}
    return {**BASE, "data": {"source": source}, **others}


def test_files_are_joined_by_their_ids(tmp_path: Path) -> None:
    scenario = parse(of_files(write_files(tmp_path)))
    data = scenario.prepare_data()
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert data.columns == ("bank.income", "shop.items")
    # In each row income is ten times the items, so that both columns have one scale.
    assert torch.allclose(rows[:, 0], rows[:, 1])
    assert len(rows) == 3
    assert scenario.label_party == 1
    assert scenario.party_names == ("bank", "shop")
    assert [says(each, "files ... 1 of 4") for each in data.warnings] == [True, True]


def test_ids_are_what_is_written(tmp_path: Path) -> None:
    """Read as numbers, 007 and 7 would be one person twice."""
    bank = pd.DataFrame({"id": ["007", "7", "8 ", "09", "1", "2"], "income": [70, 7, 8, 9, 1, 2]})
    shop = pd.DataFrame({"id": ["7", "007", "8", "9", "1", "2"], "items": [7, 70, 8, 9, 1, 2]})
    shop["bought"] = [*"ynynyn"]
    data = parse(of_files(write_files(tmp_path, bank=bank, shop=shop))).prepare_data()
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert len(rows) == 5
    assert torch.allclose(rows[:, 0], rows[:, 1])


BAD_FILES: dict[str, tuple[str, pd.DataFrame, str]] = {
    "doubled": ("bank", pd.DataFrame({"id": [1, 1, 2], "income": [1, 2, 3]}), "files.bank ... '1'"),
    "none": ("bank", pd.DataFrame({"id": [8, 9], "income": [1, 2]}), "data.source.id ... 0 ids"),
    "empty": ("bank", pd.DataFrame({"id": [1, None], "income": [1, 2]}), "files.bank ... no id"),
    "no id": ("bank", pd.DataFrame({"key": [1, 2], "income": [1, 2]}), "data.source.id ... key"),
    "no columns": ("bank", pd.DataFrame({"id": [1, 2]}), "files.bank ... no column"),
    "two targets": (
        "bank",
        pd.DataFrame({"id": [1, 2, 3], "bought": [*"yny"]}),
        "data.source.target ... bank.bought, shop.bought",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_cannot_be_joined_are_refused(name: str, tmp_path: Path) -> None:
    party, frame, gist = BAD_FILES[name]
    with pytest.raises(SimsplitError) as caught:
        parse(of_files(write_files(tmp_path, **{party: frame}))).prepare_data()
    assert says(str(caught.value), gist), str(caught.value)


def test_the_target_is_the_column_that_is_not_left_out(tmp_path: Path) -> None:
    """Another party's column of that name is a feature where the target is named in full."""
    bank = pd.DataFrame({"id": [1, 2, 3, 8], "income": [9, 8, 7, 6], "bought": [*"nyny"]})
    fields = of_files(write_files(tmp_path, bank=bank))
    source = fields["data"]["source"]
    source["drop"] = ["bank.bought"]
    assert parse(fields).label_party == 1
    assert parse(fields).prepare_data().columns == ("bank.income", "shop.items")
    source |= {"drop": [], "target": "shop.bought"}
    assert "bank.bought" in " ".join(parse(fields).prepare_data().columns)
    source["target"] = "bank.bought"
    assert parse(fields).label_party == 0


def test_labels_of_another_party_than_the_files_say_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SimsplitError) as caught:
        parse(of_files(write_files(tmp_path), vertical={"party": "bank"}))
    assert says(str(caught.value), "vertical.party ... bank ... shop")


def test_batches_do_not_depend_on_other_partys_rows(tmp_path: Path) -> None:
    """The order of test and training rows is that of the common ids alone."""
    files = write_files(tmp_path)
    first = parse(of_files(files)).prepare_data()
    more = pd.DataFrame({"id": [3, 1, 2, 8, 9], "income": [30.0, 10.0, 20.0, 4.0, 5.0]})
    second = parse(of_files(write_files(tmp_path, bank=more))).prepare_data()
    assert np.array_equal(first.train.inputs.numpy(), second.train.inputs.numpy())


STRANGE_PARTIES: dict[str, tuple[dict[str, Any], str]] = {
    "order": ({"groups": {"shop": ["shop.*"], "bank": ["bank.*"]}}, f"{GROUPS} ... bank, shop"),
    "columns": ({"groups": {"bank": ["shop.*"], "shop": ["bank.*"]}}, f"{GROUPS} ... bank, shop"),
    "names": ({"names": ["a", "b"]}, "clients.names ... bank, shop"),
}


@pytest.mark.parametrize("name", STRANGE_PARTIES)
def test_parties_that_are_not_those_of_the_files_are_refused(name: str, tmp_path: Path) -> None:
    fields, gist = STRANGE_PARTIES[name]
    values = of_files(write_files(tmp_path))
    if "groups" in fields:
        values["data"]["partition"] = {"kind": "columns", **fields}
    else:
        values["clients"] = fields
    with pytest.raises(SimsplitError) as caught:
        parse(values)
    assert says(str(caught.value), gist), str(caught.value)


def test_a_party_without_the_target_does_not_have_the_labels(tmp_path: Path) -> None:
    """Where files are on machines of their own, nobody else can tell."""
    source = JoinedSource.model_validate(of_files(write_files(tmp_path))["data"]["source"])
    with pytest.raises(SimsplitError) as caught:
        load_portion(source, "bank", tmp_path / "bank.csv", has_labels=True)
    assert says(str(caught.value), "data.source.target ... bank.csv ... bought ... vertical.party")


def test_a_targets_name_may_have_a_dot(tmp_path: Path) -> None:
    shop = pd.DataFrame({"id": [1, 2, 3], "items": [2, 3, 1], "is.bought": [*"yny"]})
    files = write_files(tmp_path, shop=shop)
    given = of_files(files)["data"]["source"] | {"target": "is.bought"}
    made = load_portion(
        JoinedSource.model_validate(given), "shop", Path(files["shop"]), has_labels=True
    )
    assert (made.columns, made.class_names) == (("shop.items",), ("n", "y"))
