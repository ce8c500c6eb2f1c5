"""Lingvo's trainer without its waits, which are all that its runs here take.

It waits half a minute before its first step, whoever initialises the weights,
and its controller looks every ten seconds whether training has ended.
"""

import pathlib

# Python imports a module of this name, if it finds one, whenever it starts.
_MODULE = """
import time

sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 1))
"""


def folder(path: pathlib.Path) -> pathlib.Path:
  """Makes a folder for PYTHONPATH with which no sleep exceeds a second."""
  path.mkdir(parents=True, exist_ok=True)
  (path / 'sitecustomize.py').write_text(_MODULE)
  return path
