"""The page in a real browser: both themes, keyboard, contrast, narrow screens, and no network."""

import shutil

import pytest

from simsplit.report.grouping import Entry
from simsplit.report.page import Subject, write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="no browser test without playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]

CONTRASTS = """() => {
  const parts = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const luminance = ([r, g, b]) => {
    const linear = (value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) return colour;
    }
    return parts(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const ink = parts(element instanceof SVGElement ? style.fill : style.color);
    const [one, other] = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), node.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path, watched):
    """The page of a watched run; gives it, and what went wrong or out of it."""
    pages = []

    def make(theme="light", width=1280, subject=None):
        file = tmp_path / "report.html"
        file.write_text(write_page(subject or Subject([Entry(watched)])), encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        lines = []
        page.on("console", lambda message: lines.append(message.text))
        page.on("pageerror", lambda error: lines.append(str(error)))
        page.on("request", lambda request: lines.append(request.url))
        page.goto(file.as_uri())
        lines = [each for each in lines if each != file.as_uri()]
        pages.append(page)
        return page, lines

    yield make
    for page in pages:
        page.close()


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_renders_in_both_themes_without_an_error_or_a_request(opened, theme):
    page, message = opened(theme)
    assert message == []
    assert (sum(map(int, background(page)[4:-1].split(", "))) > 380) == (theme == "light")
    assert page.locator("section").count() == 7
    assert page.locator("svg[data-chart]").first.bounding_box()["height"] > 150


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(opened, theme, with_texts, with_labels):
    for subject in (None, *(Subject([Entry(run)]) for run in (with_texts(), with_labels()))):
        page, _ = opened(theme, subject=subject)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 100
        assert [pair for pair in contrasts if pair[0] < 4.5] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_stand_out_too(opened, theme):
    page, _ = opened(theme)
    weak = page.evaluate(
        """() => [...Array(8).keys()].map((index) => {
          const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
          line.setAttribute("class", `curve c${index}`);
          document.querySelector("svg[data-chart]").append(line);
          const of = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => {
              const share = Number(v) / 255;
              return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
          };
          const paper = of(getComputedStyle(document.body).backgroundColor);
          const own = of(getComputedStyle(line).stroke);
          return Math.max(paper, own) / Math.min(paper, own);
        })"""
    )
    assert min(weak) >= 3


def test_the_button_changes_the_theme(opened):
    page, message = opened("light")
    light = background(page)
    page.get_by_role("button", name="Dark theme").click()
    dark = background(page)
    assert dark != light
    page.get_by_role("button", name="Light theme").click()
    assert background(page) == light
    assert message == []


def test_keys_reach_points_and_show_their_values(opened):
    page, _ = opened()
    tip = page.locator("#tip")
    assert not tip.is_visible()
    reached = ""
    for _ in range(60):
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''")
        if reached.startswith("test accuracy, round 1"):
            break
    assert reached.startswith("test accuracy, round 1: ")
    assert tip.inner_text() == reached
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("test accuracy, round 2: ")
    page.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("validation accuracy, round 2: ")
    page.keyboard.press("End")
    assert tip.inner_text().startswith("validation accuracy, round 3: ")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert tip.inner_text().startswith("validation accuracy, round 3: "), "where one has left"


def test_pointing_shows_values_and_leaving_hides_them(opened):
    page, _ = opened()
    page.locator("[data-p]").nth(1).hover()
    assert page.locator("#tip").inner_text().startswith("test accuracy, round 2: ")
    page.locator("h1").hover()
    assert not page.locator("#tip").is_visible()


def test_one_of_several_maps_is_shown_and_the_reader_chooses(opened):
    page, _ = opened()
    maps = page.locator("#clients figure")
    assert maps.count() > 2
    assert [maps.nth(i).is_visible() for i in range(2)] == [True, False]
    page.locator("#clients select").select_option(label="krum_payload")
    shown = [maps.nth(i) for i in range(maps.count()) if maps.nth(i).is_visible()]
    assert [each.get_attribute("data-view") for each in shown] == ["krum_payload"]


@pytest.mark.parametrize("width", [400, 320])
def test_wide_tables_scroll_by_themselves_on_a_narrow_screen(opened, width):
    page, _ = opened(width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.wide')].filter(b => b.scrollWidth > b.clientWidth)"
    assert page.evaluate(f"{wider}.length") > 0, "else this shows nothing"


def test_table_headers_stay_in_sight(opened):
    page, _ = opened()
    page.locator("summary").first.click()
    box = page.locator("details .wide").first
    box.evaluate("box => { box.scrollTop = 400; }")
    head = box.locator("thead th").first.bounding_box()
    assert head["y"] == pytest.approx(box.bounding_box()["y"], abs=3)


def test_a_page_is_whole_on_paper(opened):
    page, _ = opened("dark", width=794)  # of A4
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    assert sum(map(int, background(page)[4:-1].split(", "))) > 700
    assert not page.locator("nav").is_visible()
    cut = "[...document.querySelectorAll('.wide')].filter(b => b.scrollHeight > b.clientHeight + 2)"
    assert page.evaluate(f"{cut}.length") == 0


def test_a_script_in_somebody_s_text_does_not_run(opened, with_texts):
    """Should escaping ever fail, the page's own policy stops it."""
    page, message = opened(subject=Subject([Entry(with_texts())]))
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>");
        }"""
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in each for each in message)
