"""Lingvo's trainer without its waits, which are all that its runs here take.

It waits half a minute before its first step, whoever initialises the weights,
and its controller looks every ten seconds whether training has ended.
"""

import runpy
import subprocess
import sys
import time

from tests.pax_compat import launching


def run_trainer(*flags: str, **env: str) -> subprocess.CompletedProcess:
  """Runs `python -m adaptors.lingvo_trainer`, in which no sleep takes seconds.

  Args:
    *flags: of the trainer.
    **env: environment variables to set for it.
  """
  return launching.run_function(_train, *flags, **env)


def _train(*flags: str):
  sleep = time.sleep
  time.sleep = lambda seconds: sleep(min(seconds, 1))
  sys.argv = ['lingvo_trainer', *flags]
  runpy.run_module('adaptors.lingvo_trainer', run_name='__main__')
