import re
from typing import Literal

import pytest
from pace import together
from rich.console import Console

from simsplit.catalogue import _format_type, collect_groups, tabulate_catalogue
from simsplit.errors import SimsplitError
from simsplit.methods.method import MethodConfig
from simsplit.needs import Given
from simsplit.network.profiles import DEVICES, LINKS
from simsplit.scenario.shipped import list_names


class Halve(MethodConfig):
    """Half of everything."""

    kind: Literal["halve"] = "halve"
    times: int = 1
    """How often."""

    def build(self, site):
        raise NotImplementedError


HALVE = [{"METHODS": {"halve": Halve}}]


def rows(what, title, plugins=()):
    """Return field -> (type, default, meaning) of one part."""
    (table,) = [t for t in tabulate_catalogue(what, plugins) if t.title.split(":")[0] == title]
    return {name: tuple(rest) for name, *rest in table.rows}


def test_without_a_name_every_group_is_listed():
    (table,) = tabulate_catalogue(None)
    listed = dict(table.rows)
    others = ["profiles", "metrics", "topologies", "tasks", "compatibility", "threats", "rules"]
    assert list(listed) == [*collect_groups(), *others, "scenarios"]
    assert listed["methods"].startswith("raw, lightsplit, wcc, learned1x1, cast, bottlenet, topk")
    assert listed["scenario"].split(", ") == [
        "scenario", "data", "vertical", "clients", "cohort", "targets", "network", "train",
        "evaluate", "stop", "checkpoint", "output",
    ]  # fmt: skip


@together([*collect_groups(), "metrics", "topologies", "tasks", "scenarios"])
def test_every_field_has_a_type_a_default_and_a_meaning(what):
    tables = tabulate_catalogue(what)
    assert tables
    for table in tables:
        assert not table.title.endswith(":")
        empty = [row[0] for row in table.rows if row[0] != "(no fields)" and not all(row)]
        assert empty == [], f"{table.title}: no meaning, type or default"


@together(collect_groups())
def test_no_python_shows_in_types_and_defaults(what):
    python = re.compile(r"Undefined|<|None|True|False|typing|Path|Config|'|\(\)|\.0\b\.")
    for table in tabulate_catalogue(what):
        for name, kind, default, _ in table.rows:
            assert not python.search(kind + default), (table.title, name, kind, default)


def test_types_and_defaults_are_formatted_as_a_user_would_write_them():
    light = rows("methods", "lightsplit")
    assert light["legs"][:2] == ("list of (smashed | features)", "[smashed]")
    assert light["k"][:2] == ("whole number | null", "null")
    assert rows("data", "folder")["path"][:2] == ("path", "required")
    assert rows("data", "folder")["channels"][:2] == ("1 | 3", "3")
    assert rows("optimizers", "adam")["betas"][:2] == ("[number, number]", "[0.9, 0.999]")
    train = rows("scenario", "train")
    assert train["client"][:2] == ("sgd | adam | adamw", "{kind: sgd, momentum: 0.9}")
    assert train["drop_last"][:2] == ("true | false", "false")
    assert rows("observers", "transcript")["most"][:2] == ("size", "1GiB")
    top = rows("scenario", "scenario")
    assert top["train"][:2] == ("fields", "see below")
    assert top["stop"][:2] == ("fields | null", "null")
    assert "cifar10 | " in rows("scenario", "data")["source"][0]


def test_kinds_that_share_their_fields_share_a_table():
    titles = [table.title.split(":")[0] for table in tabulate_catalogue("data")]
    assert titles == [
        "digits", "mnist, fashion_mnist, cifar10, cifar100, gtsrb", "parquet", "hub", "folder",
        "npz", "table", "sklearn", "joined", "given",
        "python_docs", "text_parquet", "text_hub", "text_given",
    ]  # fmt: skip


def compatible(plugins=()):
    (table,) = tabulate_catalogue("compatibility", plugins)
    return {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_compatibility_of_every_part_is_in_plain_words():
    facts = compatible()
    several = ("methods", "attacks", "detectors", "poisons")
    kinds = [kind for name in several for kind in collect_groups()[name] if kind != "malicious"]
    assert list(facts) == kinds
    mixguard = facts["mixguard"]
    assert (mixguard["images"], mixguard["texts"]) == ("", "yes")
    assert (mixguard["u_shaped"], mixguard["vanilla"]) == ("yes", "")
    assert "public texts" in mixguard["what else it needs"]
    assert facts["foolsgold"]["vanilla"] == "with signal: payload, smashed_grad"
    assert facts["snd"]["vanilla"] == "with denoise: false"
    assert "4 clients" in facts["root_cosine"]["what else it needs"]
    assert compatible(HALVE)["halve"]["images"] == "yes"


def test_every_need_has_words_or_a_column():
    without = {given for given in Given if not given.value.words}
    assert without == {
        *(Given.CROSSES, Given.SCORING),
        *(Given.IMAGES, Given.TEXTS, Given.TABLES, Given.NUMBERS),
    }


def test_profiles_are_listed_with_their_figures():
    devices, links = tabulate_catalogue("profiles")
    assert devices.columns == ("name", "gflops", "meaning")
    assert ("gpu", "10,000", "a V100 in fp32") in devices.rows
    assert links.columns == ("name", "up_mbps", "down_mbps", "latency_ms", "meaning")
    assert ("lan", "1,000", "1,000", "0.2", "gigabit Ethernet in one building") in links.rows
    assert all(row[-1] for table in (devices, links) for row in table.rows)
    listed = dict(tabulate_catalogue(None)[0].rows)["profiles"].split(", ")
    assert listed == [*DEVICES, *LINKS]


def test_mappings_are_formatted_as_a_user_would_write_them():
    assert _format_type(dict[Literal["phone"], float] | None) == "{name: number} | null"


def test_plugins_are_listed():
    assert rows("methods", "halve", HALVE)["times"] == (
        "whole number",
        "1",
        "How often.",
    )
    assert "halve" in dict(tabulate_catalogue(None, HALVE)[0].rows)["methods"]


def test_an_unknown_group_says_what_is_near():
    with pytest.raises(SimsplitError, match=r"'method'.*'methods'") as e:
        tabulate_catalogue("method")
    assert str(e.value).endswith("tasks, compatibility, threats, rules, scenarios")


@pytest.mark.slow
@together([None, *collect_groups(), "profiles", "metrics", "topologies"], [80, 140])
def test_tables_fit_and_keep_the_names_of_fields_whole(what, width):
    for table in tabulate_catalogue(what):
        console = Console(width=width)
        with console.capture() as captured:
            console.print(table.rich(), highlight=False)
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        for name, *_ in table.rows:
            assert any(line.strip().startswith(name) for line in lines)


def test_fields_of_fields_are_named(simsplit):
    code, out, _ = simsplit("list", "models", "causal_lm", "--format", "csv")
    assert code == 0
    named = [line.split(",")[0] for line in out.splitlines()]
    assert {"lora", "lora.rank", "lora.targets", "sizes.width"} <= {*named}
    _, out, _ = simsplit("list", "scenario", "network", "--format", "csv")
    assert "\nserver.slots,whole number,1," in out
    _, out, _ = simsplit("list", "scenario", "cohort", "--format", "csv")
    assert "\navailability." in out


def test_one_part_is_a_table_by_its_kind_or_the_rows_of_its_name() -> None:
    (topk,) = tabulate_catalogue("methods", part="topk")
    assert topk.title.split(":")[0] == "topk"
    assert {
        row[0] for table in tabulate_catalogue("methods", part="ratio") for row in table.rows
    } == {"ratio"}
    (shipped,) = tabulate_catalogue("scenarios", part="quickstart")
    assert [row[0] for row in shipped.rows] == ["quickstart"]


def test_a_folder_of_scenarios_is_one_row_and_is_listed_by_its_name() -> None:
    (every,) = tabulate_catalogue("scenarios")
    (papers,) = tabulate_catalogue("scenarios", part="papers")
    (small,) = tabulate_catalogue("scenarios", part="papers/pidi/small")
    names = [row[0] for row in every.rows]
    assert [name for name in names if name.startswith("papers/pidi")] == ["papers/pidi"]
    assert {*names, *(row[0] for row in papers.rows)} >= set(list_names())
    assert 0 < len(small.rows) < len(papers.rows)


@together([("methods", "topq", "topk"), ("scenarios", "quickstat", "quickstart")])
def test_an_unknown_part_is_answered_with_the_parts_there_are(case) -> None:
    """A colon in a table's title, as in that of the scenarios, makes it no kind's table."""
    what, part, near = case
    with pytest.raises(SimsplitError) as error:
        tabulate_catalogue(what, part=part)
    assert near in str(error.value)
