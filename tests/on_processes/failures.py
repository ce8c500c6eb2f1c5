"""One of several processes hangs, and ends all of them."""

import functools
import sys
import threading
import time

import jax

from pax_compat.processes import process_failures


def one_hangs(index: str):
  """Prints what the log of the other ones gets.

  Args:
    index: of the process that hangs.
  """
  record = functools.partial(print, flush=True)
  with process_failures.shared('the test', record=record):
    if jax.process_index() == int(index):
      # Status 0, as any other one is a failure of the test.
      threading.Thread(
        target=process_failures.end, args=('it hangs',), kwargs={'status': 0}
      ).start()
    time.sleep(120)
  sys.exit('it was not ended')
