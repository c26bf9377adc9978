"""`simsplit clients`: a planted client with wrong labels is last, twins are equal, values sum."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from gists import gist, says

from simsplit import Run, SimsplitError, load_scenario, run, value_clients
from simsplit.report.canvas import save_figure_as
from simsplit.report.client_tables import (
    draw_clients,
    rank_clients,
    summarise_clients,
    tabulate_clients,
    tabulate_contributions,
)

HOSPITALS = ["Bonn", "Graz", "Oslo", "Shuffled"]


def people(count: int, names: list[str], seed: int = 0) -> pd.DataFrame:
    """Rows of hospitals with one rule; the one called Shuffled has wrong labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    ill = x[:, 0] + x[:, 1] > 0
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["hospital"] = [names[row % len(names)] for row in range(count)]
    wrong = (frame["hospital"] == "Shuffled").to_numpy()
    frame["ill"] = np.where(ill ^ wrong, "yes", "no")
    return frame


def hospitals(folder, names, **changes):
    people(240, names).to_csv(folder / "people.csv", index=False)
    people(120, names[:1], seed=1).to_csv(folder / "test.csv", index=False)
    source = {
        "kind": "table",
        "path": str(folder / "people.csv"),
        "test": str(folder / "test.csv"),
        "target": "ill",
        "client": "hospital",
    }
    values = {
        "name": "hospitals",
        "data": {"source": source, "partition": "natural"},
        "model": {"kind": "mlp", "widths": [8, 8], "head": 1, "tail": 1},
        "clients": {"count": len(names)},
        "schedule": {"kind": "round_robin", "rounds": 2},
        "train": {
            "batch_size": 10,
            "client": {"kind": "adam", "lr": 0.01},
            "server": {"kind": "adam", "lr": 0.01},
        },
        "threads": 1,
        "output": {"figures": False},
    }
    return run(values | changes, folder / "run")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Four hospitals, of which one has wrong labels; left out in turn, and all coalitions."""
    folder = tmp_path_factory.mktemp("hospitals")
    made = hospitals(folder, HOSPITALS, aggregation="splitfed_v2")
    value_clients(made, leave_out=True, shapley=24)
    return Run.load(made.path)


def test_a_client_with_wrong_labels_is_last(done):
    for way in ("leave-out", "shapley"):
        rows = done.contributions[done.contributions["by"] == way].sort_values("value")
        assert rows["name"].iloc[0] == "Shuffled"
        assert rows["high"].iloc[0] < 0
        assert (rows["low"] <= rows["value"]).all()
    assert rank_clients(done)[-1] == HOSPITALS.index("Shuffled")


def test_exact_values_sum_to_the_score(done):
    rows = done.contributions[done.contributions["by"] == "shapley"]
    everybody = done.summary["last"]["test_accuracy"]
    values = [
        json.loads(file.read_text()) for file in (done.path / "contributions/scores").iterdir()
    ]
    nobody = next(np.mean(each["scores"]) for each in values if not each["members"])
    assert math.fsum(rows["value"]) == pytest.approx(everybody - nobody, abs=1e-12)


def test_leaving_out_is_the_difference_of_two_runs(done):
    """The last hospital is left out by leaving it out of the data."""
    folder = done.path.parent / "others"
    folder.mkdir(exist_ok=True)
    rows = done.contributions.query("by == 'leave-out' and name == 'Shuffled'")
    scenario = load_scenario(done.path / "scenario.yaml")
    frame = people(240, HOSPITALS)
    data = scenario.prepare_data()
    train, test = data.train.inputs.numpy(), data.test.inputs.numpy()
    names = np.array(data.class_names)
    parts = [(train[p], names[data.train.labels.numpy()[p]]) for p in data.parts[:3]]
    alone = run(
        scenario.model_dump(mode="json"),
        folder / "run",
        data={"train": parts, "test": (test, names[data.test.labels.numpy()])},
    )
    assert len(frame) == 240
    change = done.summary["last"]["test_accuracy"] - alone.summary["last"]["test_accuracy"]
    assert rows["value"].item() == pytest.approx(change)


def test_twins_have_values_within_each_others_intervals(tmp_path):
    twins = hospitals(tmp_path, ["Bonn", "Graz", "Oslo"])
    made = value_clients(twins, leave_out=False, shapley=6, seeds=[0, 1, 2])
    assert set(made["over"]) == {"seeds"}
    assert made["low"].max() <= made["value"].min()
    assert made["value"].max() <= made["high"].min()


def test_a_checkpoint_goes_on_without_a_client(done, tmp_path):
    made = hospitals(tmp_path, HOSPITALS, aggregation="splitfed_v2")
    late = value_clients(made, from_round=1)
    assert set(late["from_round"]) == {1}
    early = done.contributions.query("by == 'leave-out'")
    assert late["value"].tolist() != early["value"].tolist()
    for wrong in (2, 5):
        with pytest.raises(SimsplitError, match=gist("0 to 1")):
            value_clients(made, from_round=wrong)
    with pytest.raises(SimsplitError, match=gist("seeds 0, 1")):
        value_clients(made, from_round=1, seeds=[0, 1])


def test_what_is_known_trains_no_more_and_costs_are_said_before(done):
    lines, steps = [], []
    value_clients(done, shapley=24, tell=lines.append, progress=lambda *s: steps.append(s))
    assert says(lines[0], "nothing trains")
    assert not steps
    value_clients(
        done, leave_out=True, seeds=[5], tell=lines.append, progress=lambda *s: steps.append(s)
    )
    assert says(lines[1], "5 coalitions")
    assert [done for _, done, _ in steps] == [1, 2, 3, 4, 5]
    value_clients(done)  # as before, for the tests below


def test_few_orders_are_an_estimate(done):
    made = value_clients(done, leave_out=False, shapley=5, tolerance=0)
    rows = made[made["by"] == "shapley"]
    assert set(rows["over"]) == {"orders"}
    assert (rows["standard_error"] >= 0).all()
    assert rows.loc[rows["value"].idxmin(), "name"] == "Shuffled"
    one = value_clients(done, leave_out=False, shapley=1, tolerance=0)
    assert one.loc[one["by"] == "shapley", "low"].isna().all()
    assert not says(tabulate_contributions(Run.load(done.path)).title, "exact")
    value_clients(done, leave_out=False, shapley=24)
    assert says(tabulate_contributions(Run.load(done.path)).title, "exact")


def test_sums_by_client(done):
    made = summarise_clients(done)
    sent = done.wire[done.wire["phase"] != "evaluate"]
    assert made["bytes_up"].sum() + made["bytes_down"].sum() == sent["bytes"].sum()
    assert made["bytes_up"].sum() == done.rounds["bytes_up"].sum()
    assert made["name"].tolist() == HOSPITALS
    assert made["samples"].sum() == 240
    assert made["steps"].sum() == done.rounds["steps"].sum()
    last = done.clients.query("client == 2 and round == 2")
    assert made.loc[2, "train_loss_last"] == last["train_loss"].item()


def test_tables_and_pictures(done, tmp_path):
    tables = tabulate_clients(done)
    assert [row[0] for row in tables[0].rows] == HOSPITALS
    assert tables[1].columns == ("client", "round 1", "round 2")
    table = tabulate_contributions(done)
    assert table.columns == ("client", "leave-out", "shapley")
    assert table.rows[-1][0] == "Shuffled"
    save_figure_as(draw_clients(done), tmp_path / "clients.png")
    assert (tmp_path / "clients.png").stat().st_size > 10_000
    figure = done.plot_clients()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [t.get_text() for t in figure.axes[-1].get_yticklabels()][-1] == "Shuffled"


def test_the_command(simsplit, tmp_path):
    made = hospitals(tmp_path, HOSPITALS[:3])
    code, out, err = simsplit("clients", made.path)
    assert (code, err) == (0, "")
    assert "Graz" in out
    code, out, err = simsplit("clients", made.path, "--leave-out", "--shapley", "6", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert len(document["contributions"]) == 6
    assert sorted(document["ranking"]) == [0, 1, 2]
    assert document["clients"][0]["name"] == "Bonn"
    code, out, err = simsplit("clients", made.path, "--leave-out", "--figure", "who.png")
    assert code == 0
    assert says(err, "nothing trains")
    assert (tmp_path / "who.png").exists()
    code, out, err = simsplit("clients", made.path, "--format", "csv")
    assert out.startswith("client,")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--leave-out", "--score", "test_acuracy"], "did you mean 'test_accuracy'"),
        (["--leave-out", "--from", "7"], "0 to 1"),
        (["--leave-out", "--seeds", "x"], "--seeds"),
        (["--seeds", "0-1", "--from", "1"], "--seeds and --from ... --leave-out"),
        (["--shapley", "4", "--tolerance", "nan"], "tolerance ... nan"),
    ],
)
def test_what_cannot_be_measured_is_refused(simsplit, done, words, why):
    code, _, err = simsplit("clients", done.path, *words)
    assert code == 2
    assert says(err, why)


def test_unfinished_runs_and_single_clients_are_refused(done, tmp_path):
    alone = hospitals(tmp_path, ["Bonn"])
    with pytest.raises(SimsplitError, match=gist("one client")):
        value_clients(alone)
    with pytest.raises(SimsplitError, match=gist("nothing to measure")):
        value_clients(done, leave_out=False)


def test_a_damaged_value_is_named(done, tmp_path):
    made = hospitals(tmp_path, HOSPITALS[:2])
    value_clients(made)
    for file in (made.path / "contributions" / "scores").iterdir():
        file.write_text(json.dumps({"members": "0 1 2 3", "scores": [1e999]}))
    with pytest.raises(SimsplitError, match=gist("contributions ... scores")):
        value_clients(made)


def test_data_that_were_passed_are_passed_again(tmp_path):
    frame = people(60, HOSPITALS[:2])
    values = {
        "model": {"kind": "mlp"},
        "schedule": {"kind": "round_robin", "rounds": 1},
        "output": {"figures": False},
    }
    how = {"target": "ill", "client": "hospital"}
    given = values | {"data": {"partition": "natural"}, "clients": {"count": 2}}
    made = run(given, tmp_path / "run", data=frame, **how)
    assert made.client_names.names == ("Bonn", "Graz")
    valued = value_clients(made, data=frame, **how)
    assert valued["client"].tolist() == [0, 1]
