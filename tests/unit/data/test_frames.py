"""Tables as samples: what scikit-learn makes of the columns, and whose rows it was fitted on."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gists import says
from sklearn.preprocessing import StandardScaler

from simsplit.data.table_frames import (
    MISSING,
    FrameOptions,
    SklearnSource,
    TableSource,
    encode_frames,
)
from simsplit.errors import DataError

ROWS = 60


def frame(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "hours": rng.normal(40, 5, ROWS),
            "job": rng.choice(["clerk", "nurse", "cook"], ROWS),
            "site": rng.choice(["north", "south"], ROWS),
            "income": np.where(rng.random(ROWS) < 0.5, "<=50K", ">50K"),
        }
    )


def table(path: Path, rows: pd.DataFrame, name: str = "people.csv") -> Path:
    rows.to_csv(path / name, index=False)
    return path / name


def test_columns_are_what_scikit_learn_makes_of_the_training_rows(tmp_path: Path) -> None:
    source = TableSource(path=table(tmp_path, frame()))
    data = source.load()
    assert data.class_names == ("<=50K", ">50K")
    assert data.info == source.describe()
    assert data.info.shape == (2 + 3 + 2,)  # two numbers, three jobs, two sites
    train = data.train.inputs.numpy()
    assert np.allclose(train[:, :2].mean(0), 0, atol=1e-6)
    assert np.allclose(train[:, :2].std(0), 1, atol=1e-6)
    assert np.array_equal(train[:, 2:5].sum(1), np.ones(len(train)))
    assert abs(data.test.inputs[:, :2].mean().item()) > 1e-4  # not fitted on these
    assert says(data.fitted, "training rows ... own")


def test_a_file_of_public_rows_is_what_is_fitted_on(tmp_path: Path) -> None:
    rows, public = frame(), frame(1).assign(age=lambda rows: rows["age"] + 100)
    here, there = table(tmp_path, rows), table(tmp_path, public, "public.csv")
    data = TableSource(path=here, test=here, public=there).load()
    scale = StandardScaler().fit(public[["age", "hours"]])
    expected = scale.transform(rows[["age", "hours"]]).astype(np.float32)
    assert np.allclose(data.test.inputs[:, :2].numpy(), expected, atol=1e-6)
    assert data.fitted == "public rows"


def test_empty_cells_are_the_median_or_a_category_of_their_own(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[:9, "hours"] = np.nan
    rows["job"] = rows["job"].astype(object)
    rows.loc[:4, "job"] = "?"
    train = TableSource(path=(file := table(tmp_path, rows)), test=file).load().train.inputs.numpy()
    assert np.isfinite(train).all()
    assert len(set(train[:10, 1])) == 1
    assert train.shape[1] == 2 + 4 + 2
    assert train[:5, 2].tolist() == [1.0] * 5  # "(missing)" comes first
    assert MISSING < "a"


def test_options_choose_columns(tmp_path: Path) -> None:
    rows = frame().assign(code=lambda rows: rows["age"] % 3)
    file = table(tmp_path, rows)
    data = TableSource(
        path=file, target="income", categories=("code", "job"), drop=("hours",), client="site"
    ).load()
    assert data.info.shape == (1 + 3 + 3,)
    assert data.train.owners is not None
    assert sorted(set(data.train.owners)) == [0, 1]


def test_clients_are_what_is_written(tmp_path: Path) -> None:
    """Read as numbers, 007 and 7 would be one client."""
    rows = frame().assign(site=lambda rows: np.where(rows["age"] % 2 > 0, "007", "7"))
    data = TableSource(path=table(tmp_path, rows), client="site").load()
    assert data.train.owners is not None
    assert sorted(set(data.train.owners)) == [0, 1]
    assert data.owner_names == ("site 007", "site 7")


def test_the_same_rows_are_test_rows_every_time_and_a_changed_file_is_read_again(
    tmp_path: Path,
) -> None:
    file = table(tmp_path, frame())
    first, again = TableSource(path=file).load(), TableSource(path=file).load()
    assert np.array_equal(first.test.inputs, again.test.inputs)
    table(tmp_path, frame(3))
    assert not np.array_equal(TableSource(path=file).load().test.inputs, first.test.inputs)


def test_parquet_is_a_table_too(tmp_path: Path) -> None:
    frame().to_parquet(tmp_path / "people.parquet")
    one = TableSource(path=tmp_path / "people.parquet").load()
    other = TableSource(path=table(tmp_path, frame())).load()
    assert np.array_equal(one.train.inputs, other.train.inputs)


@pytest.mark.parametrize(
    ("change", "gist"),
    [
        ({"target": "incme"}, "'incme'.*'income'"),
        ({"drop": ("agee",)}, "data.source.drop:.*'agee'.*'age'"),
        ({"categories": ("job",)}, r"data\.source\.categories.*'site'"),
        ({"client": "house"}, "data.source.client"),
        ({"target": "hours"}, ""),
        ({"drop": ("age", "hours", "job", "site")}, r"data\.source\.drop"),
    ],
)
def test_mistakes_in_columns_are_refused_by_field(
    tmp_path: Path, change: dict[str, object], gist: str
) -> None:
    source = TableSource(path=table(tmp_path, frame()), **change)
    if not gist:
        return
    with pytest.raises(DataError, match=gist):
        source.load()


def test_columns_that_identify_or_hold_dates_are_refused() -> None:
    names = frame().assign(name=[f"person {row}" for row in range(ROWS)])
    with pytest.raises(DataError, match=r"drop: \[name\]"):
        encode_frames("people", names, None, FrameOptions(target="income"))
    dated = frame().assign(day=pd.Timestamp("2026-01-01"))
    with pytest.raises(DataError, match="holds dates"):
        encode_frames("people", dated, None, FrameOptions(target="income"))


def test_test_rows_of_an_unknown_class_are_refused(tmp_path: Path) -> None:
    strange = frame(1)
    strange.loc[0, "income"] = "unknown"
    source = TableSource(path=table(tmp_path, frame()), test=table(tmp_path, strange, "test.csv"))
    with pytest.raises(DataError, match="training sample"):
        source.load()


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "iris", "digits"])
def test_what_ships_with_scikit_learn_is_as_described(name: str) -> None:
    source = SklearnSource(name=name)  # type: ignore[arg-type]
    assert source.load().info == source.describe()


def test_an_empty_cell_changes_no_other_category():
    """One makes floats of whole numbers, and '1.0' is not '1'."""
    rows = pd.DataFrame({"code": [1, 2, 3] * 20, "y": ["a", "b", "c"] * 20})
    test = rows.assign(code=rows["code"].where(rows.index != 0))
    options = FrameOptions(target="y", categories=("code",))
    made = encode_frames("codes", rows, test, options)
    assert made.test.inputs.sum(1).tolist() == [0.0, *[1.0] * 59]
    back = encode_frames("codes", test, rows, options)
    assert back.test.inputs.sum(1).tolist() == [1.0] * 60


def test_columns_may_be_numbers_and_may_not_be_doubled():
    rows = pd.DataFrame(np.arange(60.0).reshape(20, 3)).assign(y=["a", "b"] * 10)
    assert encode_frames("numbers", rows, None, FrameOptions(target="y")).columns == ("0", "1", "2")
    doubled = pd.concat([rows, rows[[0]]], axis=1)
    with pytest.raises(DataError, match="column '0' twice"):
        encode_frames("numbers", doubled, None, FrameOptions(target="y"))
    with pytest.raises(DataError, match=r"test: has no column 'y'"):
        encode_frames("numbers", rows, rows.drop(columns="y"), FrameOptions(target="y"))
