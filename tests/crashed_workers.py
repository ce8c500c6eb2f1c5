"""Runs the rest of a crashed worker's tests in the worker that replaces it.

pytest-xdist 3.8 waits forever after a worker with `--dist=loadfile` crashed:
the new one may be given files of which no test is left
(pytest-dev/pytest-xdist#1323), or a single test, which it begins when it knows
the next one (#1327); and it runs the test again that ended the first one.
"""

from typing import Any

import pytest
from xdist import workermanage
from xdist.scheduler import loadfile


class LoadFileScheduling(loadfile.LoadFileScheduling):
  """The scheduler of `--dist=loadfile`, which goes on after a crash."""

  def remove_node(self, node: workermanage.WorkerController) -> str | None:
    """Returns the test that ended the worker, if it had tests left."""
    files = self.assigned_work.pop(node)
    left = [
      (file, test)
      for file, tests in files.items()
      for test, is_done in tests.items()
      if not is_done
    ]
    for file, test in left[1:]:
      self.workqueue.setdefault(file, {})[test] = False
    for other in self.nodes:
      self._reschedule(other)
    return left[0][1] if left else None

  def _reschedule(self, node: workermanage.WorkerController):
    # One that collects its tests is given some when it has them.
    if node not in self.registered_collections:
      return
    super()._reschedule(node)
    if (
      not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2
    ):
      self._reschedule(node)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(
  config: pytest.Config, log: Any
) -> LoadFileScheduling | None:
  if config.getvalue('dist') == 'loadfile':
    return LoadFileScheduling(config, log)
  return None
