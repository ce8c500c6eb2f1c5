"""The table of compiled experiments, and the time of a step."""

import re

import pytest

from pax_compat import errors
from pax_compat.tools.pods import (
  collectives,
  compiling,
  documented,
  topology,
)
from tests import source_tree

_NAME = 'tasks.lm.params.c4_multislice.C4Spmd22BAdam2xv4_128'


class _Device:
  device_kind = 'TPU v4'


def _compiled(*found):
  """Returns a program of 2 TFLOP, and a GB of memory, on two slices."""
  return compiling.Compiled(
    name=_NAME,
    topology=topology.Topology(
      'v4:4x4x4', 2, topology.CHIPS['v4'], (_Device(),)
    ),
    mesh={'replica': 2, 'data': 64},
    batch='8 rows',
    seconds=(1.0, 2.0),
    cpu_seconds=3.0,
    memory={'temporary': 10**9},
    peak_memory=5 * 10**8,
    attention=('splash, for 1024 targets',),
    model_flops=2e12,
    computed_flops=2.5e12,
    traffic=1e9,
    collectives=list(found),
  )


def _sent(gigabytes, *, between_slices):
  return collectives.Collective(
    'all-reduce', ('replica',), 2, gigabytes * 1e9, 1, between_slices
  )


def test_the_network_between_slices_bounds_a_step():
  made = _compiled(
    _sent(0.1, between_slices=True), _sent(0.1, between_slices=False)
  )
  assert made.times()['network'] == pytest.approx(0.1e9 / 6.25e9)
  assert made.times()['links'] == pytest.approx(0.1e9 / 90e9)
  assert made.roofline() == ('network', pytest.approx(0.016))
  assert made.mfu == pytest.approx(2e12 / 275e12 / 0.016)
  assert 'all-reduce between slices (replica)' in made.text()
  assert 'network' not in _compiled().times()


def test_a_row_replaces_the_one_before_and_others_stay():
  header = documented._HEADER
  page = f'# Pods\n\n{header}\n|---|\n| `{_NAME}` | old |\n\nThe end.\n'
  new = documented.row(_compiled())
  page = documented.with_row(page, _NAME, new)
  assert page.count(_NAME) == 1 and new in page and page.endswith('The end.\n')
  assert '2 slices | 3 s of CPU time | 1 GB of 33 GB | 500 MB | splash' in new
  assert page.count('not compiled yet') == len(documented.EXPERIMENTS) - 1
  assert documented.with_row(page, _NAME, new) == page
  assert {line.count('|') for line in page.splitlines() if '|' in line} == {10}
  with pytest.raises(errors.UserError, match='has no table'):
    documented.with_row('# Pods', _NAME, new)


def test_a_row_has_the_flags_of_its_experiment():
  arguments = ['--page=x.md', '--attr=A=2', _NAME, '--row_of=y']
  options = documented._options(arguments)
  assert documented.row(_compiled(), options).startswith(
    f'| `{_NAME}` `--attr=A=2` |'
  )


def test_the_page_has_a_row_for_each_experiment():
  page = (source_tree.ROOT / 'docs' / 'pods.md').read_text('utf-8')
  rows = re.findall(r'^\| `([^`]+\.[^`]+)`', page, re.MULTILINE)
  assert rows == list(documented.EXPERIMENTS)
