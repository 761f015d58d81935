"""The page for trying a model, in headless Chromium against the local server."""

import shutil

import pytest

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from serving.conftest import serving

pytestmark = pytest.mark.slow
SECONDS = 60
MODELS = "words=fill_mask pairs=pair value=value labels=labels answers=squad_1.1 vectors=vectors"
FLAGS = (
  "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
  "--disable-component-update --disable-sync --window-size=1000,900"
).split()


class Page:
  """What a person sees and does."""

  def __init__(self, browser: webdriver.Chrome, url: str):
    self.browser = browser
    self.url = url

  def open(self, query: str, title: str) -> None:
    self.browser.get(f"{self.url}/{query}")
    self.wait(lambda: self.shown("form") or self.shown("error"))
    assert self.text("title") == title, self.text("error")

  def wait(self, condition) -> None:
    WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: condition())

  def element(self, name: str):
    return self.browser.find_element(By.ID, name)

  def elements(self, selector: str):
    return self.browser.find_elements(By.CSS_SELECTOR, selector)

  def shown(self, name: str) -> bool:
    return self.element(name).is_displayed()

  def text(self, name: str) -> str:
    return self.element(name).text

  def script(self, text: str, *elements) -> None:
    self.browser.execute_script(text, *elements)

  def run(self, **fields: str) -> None:
    for field, text in fields.items():
      area = self.element(f"field-{field}")
      area.clear()
      area.send_keys(text)
    self.script(
      "for (const name of ['result', 'error']) document.getElementById(name).hidden = true"
    )
    self.element("run").click()
    self.wait(lambda: self.shown("result") or self.shown("error"))

  def bars(self) -> list[tuple[str, float]]:
    rows = [line.text.split("\n") for line in self.elements("ol.bars > li")]
    return [(name, float(share.removesuffix(" %"))) for name, share in rows]


@pytest.fixture(scope="module")
def page(exported, tmp_path_factory: pytest.TempPathFactory):
  chromium = shutil.which("chromium") or shutil.which("chromium-browser")
  driver = shutil.which("chromedriver")
  if not (chromium and driver):
    pytest.skip("needs chromium and chromedriver on the PATH")
  options = webdriver.ChromeOptions()
  options.binary_location = chromium
  for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
    options.add_argument(flag)
  options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
  browser = webdriver.Chrome(options=options, service=Service(driver))
  with serving(exported, MODELS) as server:
    yield Page(browser, server.url)
  browser.quit()


def test_fill_the_blanks(page) -> None:
  page.open("?model=words", "Fill the blanks")
  page.element("field-text").clear()
  page.element("field-text").send_keys("the <b>sky</b> is ")
  page.element("insert").click()
  page.run()
  assert page.shown("result"), page.text("error")
  bars = page.bars()
  assert len(bars) == 10
  assert [share for _, share in bars] == sorted((share for _, share in bars), reverse=True)
  assert page.text("filled") == f"the <b>sky</b> is {bars[0][0]}"  # Markup is text.
  page.elements("ol.bars button")[3].click()
  assert page.text("filled").endswith(f" {bars[3][0]}")
  assert page.text("layers") == "2"
  slide = "arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))"
  page.script(slide, page.element("depth"))
  page.run()
  assert (page.text("layers"), page.bars() != bars) == ("1", True)
  assert '"signature_name": "depth_1"' in page.element("request").get_attribute("textContent")
  page.run(text="[MASK] [MASK]")
  assert len(page.bars()) == 20
  page.run(text="no blank")
  assert (page.shown("result"), "must contain [MASK]" in page.text("error")) == (False, True)


def test_sentence_pair_and_value(page) -> None:
  page.open("?model=pairs", "Classify")
  page.run(text="the sky", text_pair="old trees")
  bars = page.bars()
  assert {name for name, _ in bars} == {"no", "yes", "both"}
  assert sum(share for _, share in bars) == pytest.approx(100, abs=0.2)
  page.open("?model=value", "Score")
  assert not page.elements("#field-text_pair")
  page.run()
  assert float(page.text("result").split("\n")[0])


def test_the_slider_stops_an_answer_early(page) -> None:
  page.open("?model=labels", "Classify")
  for threshold, layers in ((0, 1), (1, 2)):
    page.script(
      "const slider = document.getElementById('threshold'); slider.value = arguments[0];"
      "slider.dispatchEvent(new Event('input'))",
      threshold,
    )
    page.run(text="grass")
    assert page.text("took") == f"Layers: {layers}."


def test_every_label_with_its_probability(page) -> None:
  page.open("?model=labels", "Classify")
  page.run(text="small birds sing under old trees")
  bars = page.bars()
  assert [share for _, share in bars] == sorted((share for _, share in bars), reverse=True)
  given = {name.strip("✓ ") for name, _ in bars if name.startswith("✓")}
  shares = {name.strip("✓ "): share for name, share in bars}
  assert shares.keys() == {"bird", "sky", "tree"}
  assert given == {"bird", "sky"} - ({"sky"} if shares["sky"] < 50 else set())
  assert {line.text.strip("✓ ") for line in page.elements("ol.bars > li.best .name")} == given
  assert "above their thresholds" in page.text("result")


def test_two_texts_are_compared(page) -> None:
  page.open("?model=vectors", "Compare two texts")
  cosines = []
  for other in ("the sky", "small birds sing"):
    page.run(text="the sky", other=other)
    value, note, layers = page.text("result").split("\n")
    assert layers == "Layers: 2, 2."
    cosines.append(float(value))
    assert note == "Cosine of the two texts' vectors (vector, 12 numbers)."
  assert cosines[0] == 1.0 >= cosines[1]


def test_question(page) -> None:
  page.open("?model=answers", "Answer a question")
  context = "😀 the sky is blue and green grass grows under old trees"
  # The driver types no emoji.
  page.script("arguments[0].value = arguments[1]", page.element("field-context"), context)
  page.run(question="what grows")
  assert page.shown("result"), page.text("error")
  bars = page.bars()
  assert page.text("passage") == context
  assert page.elements("#passage mark")[0].text == bars[0][0]
  assert all(name in context for name, _ in bars)


def test_models_are_listed_and_errors_are_said(page) -> None:
  page.open("", "Answer a question")
  choice = Select(page.element("model"))
  names = [option.text for option in choice.options]
  assert names == ["answers", "labels", "pairs", "value", "vectors", "words"]
  choice.select_by_visible_text("pairs")
  page.wait(lambda: page.text("title") == "Classify")
  page.browser.get(f"{page.url}/?model=nobody")
  page.wait(lambda: "not found" in page.text("error"))
