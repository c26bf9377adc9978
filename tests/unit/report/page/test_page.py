"""The page has a section for all that its runs have, and nothing in it is anybody's markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from builders import scenario
from gists import says

from simsplit.report.grouping import Entry
from simsplit.report.html.chart import Series, choose_ticks, draw_lines
from simsplit.report.html.markup import Markup, join, tag, void
from simsplit.report.html.subject import Subject as Settings
from simsplit.report.page import Subject, write_page
from simsplit.report.page.question import describe_clients
from simsplit.report.page.verdict import write_verdict
from simsplit.results import Run

EVIL = '<script>alert("x")</script>&\'</title><img src=x onerror=alert(1)>'
BADNETS = {"kind": "badnets"}
ALWAYS = [
    *("The question", "Learning curves", "Bytes and time", "Who holds what"),
    *("Clients", "Environment"),
]
SEVERAL = [name for name in ALWAYS if name != "Who holds what"]
"""The sections of several runs, of which each would have such a table."""


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, their attributes, and its texts."""

    VOID = ("meta", "img", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.headings, self.words = [], [], [], []
        self.feed(text)
        assert not self.open, "all that is opened is closed"

    def handle_starttag(self, name, attrs):
        self.elements.append((name, dict(attrs)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attrs):
        self.elements.append((name, dict(attrs)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    def values(self, attribute):
        return [attrs[attribute] for _, attrs in self.elements if attribute in attrs]


@pytest.mark.parametrize(
    ("malicious", "words"),
    [
        ({"ids": [1, 3]}, "malicious: 1 + 3 (badnets)"),
        ({"fraction": 0.25}, "25 % malicious (badnets)"),
        ({}, "10 % malicious (badnets)"),
        ({"fraction": 0.0}, "4, shared heads"),
    ],
)
def test_the_question_says_who_is_malicious(malicious, words):
    given = scenario(clients={"count": 4, "malicious": {**malicious, "poison": [BADNETS]}})
    said = describe_clients(given.model_dump(mode="json"))
    assert said.endswith(words)


def test_a_sweeps_page_is_titled_by_what_it_sweeps(finished_run):
    swept = {"name": "name", "method.0.ratio": "ratio", "seed": "seed"}
    sweep = {"sweep": finished_run.path.parent, "sweep_name": "quickstart"}
    cells = [Entry(finished_run, **sweep, short=swept) for _ in range(2)]
    assert Settings(cells).title == "quickstart by ratio"
    assert Settings([Entry(finished_run, **sweep, short={"seed": "seed"})]).title == "quickstart"
    assert Settings([*cells, Entry(finished_run)]).title == "quickstart by ratio, finished"


def test_text_is_escaped_wherever_it_stands():
    assert tag("p", EVIL, title=EVIL).count("<") == 2
    assert join(["<b>", Markup("<b>")]) == "&lt;b&gt;<b>"
    assert tag("a", class_="x", data_p="", id=None) == '<a class="x" data-p=""></a>'
    assert void("rect", x=1) == '<rect x="1"/>'


def test_a_plain_run_has_its_sections_and_no_others(finished_run, page):
    assert Seen(page(finished_run)).headings == ALWAYS


def test_who_holds_what_is_a_row_a_client_that_adds_up(finished_run, page):
    held = finished_run.holdings
    made = page(finished_run)
    table = made[made.index('id="who-holds-what"') :]
    table = table[: table.index("</table>")]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]
    cells = [[int(n) for n in re.findall(r">(\d+)<", row)] for row in rows]
    assert [row[-1] for row in cells] == held.groupby("client")["samples"].sum().tolist()
    assert all(sum(row[:-1]) == row[-1] for row in cells)


def test_a_watched_run_has_detection(watched, page):
    seen = Seen(page(watched))
    assert seen.headings == [*ALWAYS[:-1], "Detection", ALWAYS[-1]]
    views = seen.values("data-view")
    assert views[:2] == ["train loss", "train accuracy"]
    assert set(views) >= {"cosine_payload", "krum_payload"}
    (bad,) = watched.clients.loc[watched.clients["malicious"] == 1, "client"].unique()
    lines = [label for label in seen.values("aria-label") if label.startswith(f"client {bad}, mal")]
    row = watched.clients.query(f"client == {bad} and round == 3").iloc[0]
    flagged = ", flagged" if row["cosine_payload_flagged"] else ""
    value = f"cosine_payload {row['cosine_payload_z']:.3g}{flagged}"
    assert f"client {bad}, malicious, round 3: {value}" in lines


def test_a_run_under_attack_has_what_was_recovered(with_images, with_texts, page):
    images = Seen(page(with_images()))
    assert images.headings == [*ALWAYS[:-1], "Recovered", ALWAYS[-1]]
    pictures = [attrs for name, attrs in images.elements if name == "img"]
    assert len(pictures) == 9
    assert pictures[0]["alt"] == "private, image 0"
    assert all(each["src"].startswith("data:image/png;base64,") for each in pictures)
    text = page(with_texts())
    assert Seen(text).headings == images.headings
    assert "<mark>cat sat on</mark> <mark>mat</mark>" in text


def test_a_run_whose_labels_were_attacked_shows_scores_and_inputs(with_labels, page):
    made = page(with_labels())
    seen = Seen(made)
    assert seen.headings == [*ALWAYS[:-1], "Labels", ALWAYS[-1]]
    lines = seen.values("aria-label")
    panels = [label for label in lines if "worst attack" in label]
    expected = [
        "gradients of features, adapter 1, round 1: ... 75 %",
        "gradients of features, adapter 1, round 2: ... 100 %",
        "features, adapter 0, round 1: ... 75 %",
        "features, adapter 0, round 2: ... 75 %",
    ]
    assert [says(*pair) for pair in zip(panels, expected, strict=True)] == [True] * 4
    assert {"spectral, round 2: 100.0 %", "kmeans, round 1: 75.0 %", "chance, round 1: 56.0 %"} < {
        *lines
    }
    assert any(label.startswith("test accuracy, round 1: ") for label in lines)
    dots = [a["d"] for n, a in seen.elements if n == "path" and "dots" in a.get("class", "")]
    assert sum(path.count("M") for path in dots) == 2 + 4 * 4, "a legend's two, and the targets"
    assert "75.0 (20 to 100)" in made
    assert re.search(r"; labels inferred: 100 % by spectral, chance 55 %", made)


def test_of_several_settings_each_has_its_worst_leak(with_labels, page):
    runs = [
        with_labels(f"{size}-{seed}", seed, train={"batch_size": size})
        for size in (8, 9)
        for seed in (0, 1)
    ]
    seen = Seen(page(*runs))
    assert seen.headings == [*SEVERAL[:-1], "Labels", "Comparison", SEVERAL[-1]]
    lines = seen.values("aria-label")
    assert "batch_size 8, round 2: 100.0 %" in lines
    assert seen.values("data-view").count("batch_size 9") == 1


def test_several_runs_have_a_comparison_and_what_differs(variant, page):
    light = [{"kind": "lightsplit", "ratio": 8.0, "lift": "fixed"}]
    runs = [
        variant(f"{name}{seed}", {"method": method, "seed": seed, "name": "same"})
        for name, method in (("raw", []), ("light", light))
        for seed in (0, 1)
    ]
    seen = Seen(page(*runs))
    assert seen.headings == [*SEVERAL[:-1], "Comparison", SEVERAL[-1]]
    assert seen.words.count("lightsplit 8 fixed") >= 3
    points = [
        label for label in seen.values("aria-label") if "round 1: " in label and "raw" in label
    ]
    assert any(label.endswith(", 2 seeds)") for label in points), "a mean, and the seeds beside it"


def test_nothing_that_a_run_says_becomes_markup(with_texts, retold, page):
    """Names, texts and commands come from the author of the run."""
    run = with_texts(private=EVIL, read=EVIL, name="evil")
    retold(run, "summary.json", name=EVIL)
    retold(run, "environment.json", command=["simsplit", EVIL], gpu=EVIL, platform=EVIL)
    scenario = run.path / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("name: evil", "name: '<script>x'"))
    made = page(Run.load(run.path))
    seen = Seen(made)
    assert [name for name, _ in seen.elements].count("script") == 1
    assert not [attrs for _, attrs in seen.elements if "onerror" in attrs]
    assert not [attrs for name, attrs in seen.elements if name == "img" and attrs["src"] == "x"]
    assert any(EVIL in words for words in seen.words)
    assert "<script>x" in "".join(seen.words)


def test_nothing_is_loaded_and_only_its_own_script_runs(watched, with_images, page):
    for made in (page(watched), page(with_images())):
        seen = Seen(made)
        assert not [v for v in seen.values("src") if not v.startswith("data:")]
        assert not [v for v in seen.values("href") if not v.startswith("#")]
        assert "link" not in [name for name, _ in seen.elements]
        assert not re.search(r"url\(|@import|https?:", made)
        (policy,) = [v for v in seen.values("content") if "default-src 'none'" in v]
        script = made.split("<script>")[1].split("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in policy


def test_contents_lead_to_sections(watched, page):
    seen = Seen(page(watched))
    links = [value[1:] for value in seen.values("href")]
    assert len(links) == 7
    assert set(links) <= set(seen.values("id"))


def test_the_verdict_is_what_the_tables_say(watched, with_images, variant):
    def of(*runs):
        return write_verdict(Settings([Entry(run) for run in runs]))

    quoted = watched.summary["best_on_validation"]
    verdict = of(watched)
    accuracy, number = 100 * quoted["test_accuracy"], quoted["round"]
    assert says(verdict, f"accuracy {accuracy:.1f} % ... round {number}, ... validation")
    sent = watched.wire[watched.wire["phase"] != "evaluate"]
    legs = sent[~sent["leg"].isin(["handover", "broadcast"])]["bytes"].sum()
    less = watched.rounds["bytes_plain"].sum() / legs
    assert f"{less:.2f} times" in verdict
    assert re.search(r"backdoor.*\d+ %", verdict)
    assert re.search(r"2 detectors|no detector", verdict)
    assert says(of(with_images()), "unsplit, MSE 0.1 ... 0.3")
    two = of(
        variant("a", {"seed": 0}, {"test_accuracy": 0.5}),
        variant("b", {"seed": 0, "train": {"batch_size": 8}}, {"test_accuracy": 0.75}),
    )
    changed = "accuracy ... 50.0 % (batch_size 16) ... 75.0 % (batch_size 8); 1.5 MiB"
    assert says(two, f"2 settings, 2 runs. ... {changed}")


def test_a_run_that_goes_on_is_shown_up_to_its_last_round(finished_run, retold, variant, page):
    run = retold(variant("running"), "summary.json", status="running", rounds=9)
    made = page(run)
    assert "Not finished (running), 1 of 9 rounds." in made
    assert Seen(made).headings == ALWAYS


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 9.0, [0, 2, 4, 6, 8]),
        (0.91, 0.98, [0.92, 0.94, 0.96, 0.98]),
        (-3.0, 3.0, [-2, 0, 2]),
    ],
)
def test_ticks_are_round_values(least, most, ticks):
    assert [value for value in choose_ticks(least, most) if least <= value <= most] == ticks


def test_a_curve_is_where_its_values_are_and_a_long_one_is_thinned():
    def points(chart):
        return re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)" class="point', chart)

    three = Series("s", [0, 1, 2], [0.0, 0.5, 1.0], ["a", "b", "c"])
    places = points(draw_lines("x", [three], ("round", str), ("y", str)))
    (left, low), (middle, half), (right, high) = [tuple(map(float, place)) for place in places]
    assert left < middle < right
    assert low > half > high
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    count = 5000
    many = Series("s", list(range(count)), [0.5] * count, [str(n) for n in range(count)])
    drawn = draw_lines("x", [many], ("round", str), ("y", str))
    assert len(points(drawn)) <= 150
    assert 'aria-label="0"' in drawn
    assert 'aria-label="4999"' in drawn
    assert draw_lines("x", [], ("round", str), ("y", str)) == ""


def test_a_chart_is_one_stop_of_the_tab_key(watched, page):
    made = page(watched)
    charts = made.split("data-chart=")[1:]
    assert charts
    for chart in charts:
        inner = chart.split("</svg>")[0] if "<ul" not in chart[:5] else chart
        assert inner.split("data-chart=")[0].count('tabindex="0" ') <= 2


def test_left_out_cells_are_named(finished_run):
    made = write_page(Subject([Entry(finished_run)], ["left out: <b>cell</b> failed: no memory"]))
    assert "left out: &lt;b&gt;cell&lt;/b&gt; failed: no memory" in made


def test_a_run_stopped_before_its_first_round_has_what_was_asked(variant, page):
    run = variant("failed")
    for table in ("rounds", "clients", "wire", "timing"):
        file = run.path / f"{table}.csv"
        file.write_text(file.read_text().splitlines()[0] + "\n")
    facts = {"name": "failed", "status": "failed", "rounds": 5, "reason": "<the disk> is full"}
    (run.path / "summary.json").write_text(json.dumps(facts))
    made = page(Run.load(run.path))
    assert Seen(made).headings == ["The question", "Who holds what", "Environment"]
    assert "Not finished (failed), 0 of 5 rounds. Why: &lt;the disk&gt; is full." in made


def test_runs_of_different_tasks_stand_side_by_side(with_images, with_texts, watched, page):
    images, texts = with_images(), with_texts()
    headings = Seen(page(images, texts, watched)).headings
    assert headings == [*SEVERAL[:-1], "Detection", "Recovered", "Comparison", SEVERAL[-1]]


def test_many_clients_and_rounds_are_cut_to_what_can_be_seen(variant, page):
    run = variant("crowd", {"clients": {"count": 90}})
    lines = ["round,client,steps,samples,train_loss,train_accuracy"]
    lines += [f"{n},{client},1,8,{client / 100},0.5" for n in range(1, 101) for client in range(90)]
    (run.path / "clients.csv").write_text("\n".join(lines) + "\n")
    made = page(Run.load(run.path))
    assert says(made, "40 of 90 clients ... 40 of 100 rounds")
    cells = [label for label in Seen(made).values("aria-label") if ": train loss" in label]
    assert len(cells) == 1600
    assert cells[0] == "client 0, round 1: train loss 0"


def test_what_was_passed_from_python_is_named_in_the_call_that_repeats_it(variant, page):
    fields = {"data": {"source": {"kind": "given", "digest": "0"}}}
    made = page(variant("own", fields))
    assert "simsplit.run(&quot;" in made
    assert "scenario.yaml&quot;, data=...)" in made
    assert "data from Python" in made
