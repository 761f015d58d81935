"""The picture of the local page with the demo's model: `python docs/site/local_page.py .demo/run/saved_model`.

It needs Chromium and chromedriver.
"""

import pathlib
import shutil
import sys
import threading

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from albert_tf.serving.server import LocalServer

PICTURE = pathlib.Path(__file__).parents[1] / "images/local_page.png"
# Narrow, so that it can be read on a phone.
FLAGS = "--headless=new --no-sandbox --hide-scrollbars --window-size=500,752 --force-device-scale-factor=1.3"


def open_browser() -> webdriver.Chrome:
  """Chromium without a window."""
  options = webdriver.ChromeOptions()
  options.binary_location = shutil.which("chromium") or "chromium-browser"
  for flag in FLAGS.split():
    options.add_argument(flag)
  return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def main() -> None:
  server = LocalServer([f"demo={sys.argv[1]}"])
  threading.Thread(target=server.serve_forever, daemon=True).start()
  # The page as a person sees it after two clicks.
  browser = open_browser()
  browser.get(server.url)
  wait = WebDriverWait(browser, 60)
  run = browser.find_element(By.ID, "run")
  example = browser.find_element(By.ID, "example")
  result = browser.find_element(By.ID, "result")
  wait.until(lambda _: run.is_displayed())
  # The page's second example. The first request is slower than later ones, so its time is not shown.
  run.click()
  wait.until(lambda _: result.is_displayed())
  example.click()
  run.click()
  wait.until(lambda _: "exist" in result.text)
  # The mark of the keyboard's focus would stay on the button.
  browser.execute_script("document.activeElement.blur()")
  browser.save_screenshot(str(PICTURE))
  browser.quit()
  server.shutdown()


if __name__ == "__main__":
  main()
