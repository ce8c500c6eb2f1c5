"""Runs the tests of each file here in a forked process with eight CPU devices.

That process is pytest, too. It writes the reports of its tests to a file, from
which they are those of the tests here.
"""

import json
import os
import pathlib
import tempfile

import pytest

from tests.pax_compat import forking, launching

_FOLDER = pathlib.Path(__file__).parent
# In the forked process: the file for reports.
_REPORTS = 'ON_EIGHT_DEVICES_REPORTS'
# In this one: the reports of the files that were run, by test.
_ENDED = pytest.StashKey[dict]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
  # Tests of other folders come here, too.
  if _REPORTS in os.environ or _FOLDER not in item.path.parents:
    return None  # It is run here.
  item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
  for report in _reports(item):
    item.ihook.pytest_runtest_logreport(report=report)
  item.ihook.pytest_runtest_logfinish(
    nodeid=item.nodeid, location=item.location
  )
  return True


def _reports(item) -> list[pytest.TestReport]:
  """Returns the reports of a test, whose file is run for its first test."""
  ended = item.config.stash.setdefault(_ENDED, {})
  if item.path not in ended:
    ended[item.path] = _run(
      [x for x in item.session.items if x.path == item.path]
    )
  reports, output = ended[item.path]
  found = [report for report in reports if report.nodeid == item.nodeid]
  if not found:
    found = [
      pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome='failed',
        longrepr=f'the process has no report of this test:\n{output}',
        when='call',
      )
    ]
  return found


def _run(items) -> tuple[list[pytest.TestReport], str]:
  """Returns all reports of tests of one file, and what the process printed."""
  config = items[0].config
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'reports')
    path.touch()
    done = forking.run(
      *('-m', 'pytest', '-n', '0', '-m', '', '-p', 'no:cacheprovider'),
      f'--rootdir={config.rootpath}',
      *(f'{config.rootpath / item.nodeid}' for item in items),
      env=launching.environment(
        XLA_FLAGS=launching.flags_of_devices(8), **{_REPORTS: str(path)}
      ),
      timeout=launching.PATIENCE_SECONDS,
    )
    reports = [
      config.hook.pytest_report_from_serializable(
        config=config, data=json.loads(line)
      )
      for line in path.read_text().splitlines()
    ]
  return reports, done.stdout + done.stderr


class _ReportWriter:
  """A plugin of the forked process that writes reports to its file."""

  def __init__(self, config: pytest.Config, path: str):
    self._config = config
    self._path = path

  def pytest_runtest_logreport(self, report):
    data = self._config.hook.pytest_report_to_serializable(
      config=self._config, report=report
    )
    with open(self._path, 'a') as file:
      file.write(json.dumps(data) + '\n')


def pytest_configure(config):
  if path := os.environ.get(_REPORTS):
    config.pluginmanager.register(_ReportWriter(config, path))
