"""The page for trying a model, in headless Chromium against the local server."""

import shutil

import pytest

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

SECONDS = 60
FLAGS = (
  "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
  "--disable-component-update --disable-sync --window-size=1000,900"
).split()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
  chromium, driver = (
    shutil.which("chromium") or shutil.which("chromium-browser"),
    shutil.which("chromedriver"),
  )
  if not (chromium and driver):
    pytest.skip("needs chromium and chromedriver on the PATH")
  options = webdriver.ChromeOptions()
  options.binary_location = chromium
  for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
    options.add_argument(flag)
  options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
  opened = webdriver.Chrome(options=options, service=Service(driver))
  yield opened
  opened.quit()


class Page:
  """What a person sees and does."""

  def __init__(self, browser: webdriver.Chrome, served, model: str = ""):
    self.browser = browser
    browser.get(f"{served.url}/{'?model=' + model if model else ''}")
    self.wait(lambda: self.shown("form") or self.shown("error"))

  def wait(self, condition) -> None:
    WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: condition())

  def element(self, name: str):
    return self.browser.find_element(By.ID, name)

  def shown(self, name: str) -> bool:
    return self.element(name).is_displayed()

  def text(self, name: str) -> str:
    return self.element(name).text

  def write(self, field: str, text: str) -> None:
    area = self.element(f"field-{field}")
    area.clear()
    area.send_keys(text)

  def run(self, **fields: str) -> None:
    for field, text in fields.items():
      self.write(field, text)
    self.browser.execute_script(
      "for (const id of ['result', 'error']) document.getElementById(id).hidden = true"
    )
    self.element("run").click()
    self.wait(lambda: self.shown("result") or self.shown("error"))

  def bars(self) -> list[tuple[str, float]]:
    rows = [
      line.text.split("\n") for line in self.browser.find_elements(By.CSS_SELECTOR, "ol.bars > li")
    ]
    return [(name, float(share.removesuffix(" %"))) for name, share in rows]


def test_fill_the_blanks(browser, served) -> None:
  page = Page(browser, served, "words")
  assert page.text("title") == "Fill the blanks"
  page.write("text", "the <b>sky</b> is ")
  page.element("insert").click()
  page.run()
  assert page.shown("result"), page.text("error")
  bars = page.bars()
  assert len(bars) == 10
  assert [share for _, share in bars] == sorted((share for _, share in bars), reverse=True)
  assert page.text("filled") == f"the <b>sky</b> is {bars[0][0]}"  # Markup is text.
  browser.find_elements(By.CSS_SELECTOR, "ol.bars button")[3].click()
  assert page.text("filled").endswith(f" {bars[3][0]}")
  assert page.text("layers") == "2"
  browser.execute_script(
    "const slider = document.getElementById('depth'); slider.value = 0; slider.dispatchEvent(new Event('input'))"
  )
  page.run()
  assert (page.text("layers"), page.bars() != bars) == ("1", True)
  assert '"signature_name": "depth_1"' in page.element("request").get_attribute("textContent")
  page.run(text="[MASK] [MASK]")
  assert len(page.bars()) == 20
  page.run(text="no blank")
  assert (page.shown("result"), "must contain [MASK]" in page.text("error")) == (False, True)


def test_sentence_pair_and_value(browser, served) -> None:
  page = Page(browser, served, "pairs")
  assert page.text("title") == "Classify"
  page.run(text="the sky", text_pair="old trees")
  bars = page.bars()
  assert {name for name, _ in bars} == {"no", "yes", "both"}
  assert sum(share for _, share in bars) == pytest.approx(100, abs=0.2)
  page = Page(browser, served, "value")
  assert not browser.find_elements(By.ID, "field-text_pair")
  page.run()
  assert float(page.text("result"))


def test_every_label_with_its_probability(browser, served) -> None:
  page = Page(browser, served, "labels")
  assert page.text("title") == "Classify"
  page.run(text="small birds sing under old trees")
  bars = page.bars()
  assert [share for _, share in bars] == sorted((share for _, share in bars), reverse=True)
  given = {name.strip("✓ ") for name, _ in bars if name.startswith("✓")}
  assert {name.strip("✓ ") for name, _ in bars} == {"bird", "sky", "tree"}
  assert given == {"bird"} | {
    name.strip("✓ ") for name, share in bars if "sky" in name and share >= 50
  }
  best = browser.find_elements(By.CSS_SELECTOR, "ol.bars > li.best .name")
  assert {line.text.strip("✓ ") for line in best} == given
  assert "above their thresholds" in page.text("result")


def test_two_texts_are_compared(browser, served) -> None:
  page = Page(browser, served, "vectors")
  assert page.text("title") == "Compare two texts"
  cosines = []
  for other in ("the sky", "small birds sing"):
    page.run(text="the sky", other=other)
    value, note = page.text("result").split("\n")
    cosines.append(float(value))
    assert note == "Cosine of the two texts' vectors (vector, 12 numbers)."
  assert cosines[0] == 1.0 >= cosines[1]


def test_question(browser, served) -> None:
  page = Page(browser, served, "answers")
  assert page.text("title") == "Answer a question"
  context = "😀 the sky is blue and green grass grows under old trees"
  browser.execute_script(
    "arguments[0].value = arguments[1]", page.element("field-context"), context
  )
  page.run(question="what grows")
  assert page.shown("result"), page.text("error")
  bars = page.bars()
  assert page.text("passage") == context
  assert browser.find_element(By.CSS_SELECTOR, "#passage mark").text == bars[0][0]
  assert all(name in context for name, _ in bars)


def test_models_are_listed_and_errors_are_said(browser, served) -> None:
  page = Page(browser, served)
  names = [option.text for option in Select(page.element("model")).options]
  assert names == ["answers", "choices", "labels", "pairs", "value", "vectors", "words"]
  Select(page.element("model")).select_by_visible_text("pairs")
  page.wait(lambda: page.text("title") == "Classify")
  assert "not found" in Page(browser, served, "nobody").text("error")
