"""Every example of an evaluation counts once, on any number of hosts.

Inputs that are not Lingvo's have tests of their properties beside their own.
"""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from pax_compat import errors
from tests.adaptors import exact_inputs
from tests.on_processes import exact_shards
from tests.pax_compat import launching

# Two and four run as real processes.
_HOSTS = (1, 3, 8)
_ROWS = 5
_MANY = 10_007
# Kinds that refuse data without any example.
_REFUSE_NONE = {'lingvo text', 'lingvo lazy'}


def _hosts(*quick: int):
  """Repeats a test for all numbers of hosts, of which some are not slow."""
  return pytest.mark.parametrize(
    'hosts',
    [
      pytest.param(n, marks=[] if n in quick else pytest.mark.slow)
      for n in _HOSTS
    ],
  )


def _check(kind, folder, *, count, rows, hosts):
  shards = [
    exact_inputs.shard(
      kind, count=count, rows=rows, folder=folder, hosts=hosts, host=host
    )
    for host in range(hosts)
  ]
  exact_inputs.check(shards, count)
  # None has a batch in which no host has an example, but for length buckets.
  if kind != 'lingvo text':
    assert shards[0][1] == -(-count // (rows * hosts))


@_hosts(3)
@pytest.mark.parametrize(
  'kind', [kind for kind in exact_inputs.KINDS if kind.startswith('lingvo')]
)
def test_any_number_of_examples_and_rows(kind, hosts, tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')

  @hypothesis.settings(max_examples=4)
  @hypothesis.given(
    rows=st.integers(1, 9), batches=st.integers(0, 4), more=st.integers(-1, 1)
  )
  def check(rows, batches, more):
    # About a whole number of batches, of one host or of all of them.
    count = max(1, rows * batches + more)
    _check(kind, folder, count=count, rows=rows, hosts=hosts)

  check()


@_hosts(1, 3, 8)
@pytest.mark.parametrize('kind', exact_inputs.KINDS)
def test_every_example_counts_once(kind, hosts, tmp_path):
  for count in (1, _ROWS - 1, _ROWS, _ROWS + 1):
    _check(kind, tmp_path, count=count, rows=_ROWS, hosts=hosts)


@_hosts(3)
@pytest.mark.parametrize('kind', exact_inputs.KINDS)
def test_every_one_of_many_examples_counts_once(kind, hosts, tmp_path):
  _check(kind, tmp_path, count=_MANY, rows=250, hosts=hosts)


@_hosts(1, 3)
@pytest.mark.parametrize('kind', exact_inputs.KINDS)
def test_no_example(kind, hosts, tmp_path):
  if kind not in _REFUSE_NONE:
    _check(kind, tmp_path, count=0, rows=_ROWS, hosts=hosts)
    return
  for host in range(hosts):
    with pytest.raises(errors.UserError, match='empty|num_samples'):
      exact_inputs.shard(
        kind, count=0, rows=_ROWS, folder=tmp_path, hosts=hosts, host=host
      )


@pytest.mark.parametrize('count', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_real_processes(count, tmp_path):
  counts = (1, 10)
  outputs = launching.run_on_processes(
    exact_shards.print_shards, count, args=[tmp_path, *counts]
  )
  found = [json.loads(output.splitlines()[-1]) for output in outputs]
  assert len(found) == count
  for kind in exact_inputs.KINDS:
    for n in counts:
      exact_inputs.check([of_host[f'{kind}/{n}'] for of_host in found], n)
