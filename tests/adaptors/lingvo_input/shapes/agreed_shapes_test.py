"""Hosts that read different orders return one shape at each step."""

import collections
import json
import random

import pytest

from adaptors.lingvo_input.shapes import agreed_shapes
from tests.adaptors.lingvo_input import generators as testing
from tests.on_processes import letters
from tests.pax_compat import launching

_OF_BUCKETS = {(8, 11), (4, 21), (2, 41)}


def test_two_processes(tmp_path):
  # One file for each of them. The second host comes to its end much earlier.
  lines = testing.mixed_lines(70)
  testing.write_lines(tmp_path / '0.txt', lines[:59])
  testing.write_lines(tmp_path / '1.txt', lines[59:])
  outputs = launching.run_on_processes(
    letters.read, 2, args=[f'text:{tmp_path}/*.txt']
  )
  hosts = [json.loads(output.splitlines()[-1]) for output in outputs]
  for part in ('epoch', 'endless'):
    first, second = ([tuple(s) for s in h[part]['shapes']] for h in hosts)
    assert first == second
    assert set(first) == _OF_BUCKETS
    for weights in zip(*(h[part]['real'] for h in hosts), strict=True):
      assert any(weights)
  # Each line once, and nothing else counts.
  read = [line for h in hosts for line in h['epoch']['lines']]
  assert len(read) == len(set(read)) == len(lines)
  for host in hosts:
    epoch = host['epoch']
    assert host['after the end'] == 0
    for real, positions in zip(epoch['real'], epoch['positions'], strict=True):
      assert (real == 0) == (positions == 0)
  # The long file's batches make the steps; the other host adds padding.
  assert hosts[0]['weightless'] <= 1
  assert hosts[1]['weightless'] == hosts[1]['epoch']['real'].count(0) >= 8
  assert hosts[0]['endless']['real'].count(0) <= 8
  assert hosts[1]['interrupted']


def _plan(*hosts, seed=0):
  texts = [json.dumps(counts) for counts in hosts]
  return json.loads(agreed_shapes._plan(texts, draw=random.Random(seed)))


def test_a_plan_prefers_what_most_hosts_have():
  hosts = {'a': 3, 'b': 1}, {'b': 1, 'c': 5}, {'b': 2, 'c': 1, 'a': 0}
  for seed in range(5):
    steps = _plan(*hosts, seed=seed)
    assert steps[:2] == ['b', 'c'] and len(steps) == 8
    # Then it is one host each time, of ten batches that there are.
    counts = collections.Counter(steps)
    assert counts['a'] <= 3 and counts['b'] <= 2 and counts['c'] <= 5


def test_shapes_come_as_often_as_there_are_batches_of_them():
  hosts = [{'a': 20, 'b': 10, 'c': 2}] * 2
  plans = [_plan(*hosts, seed=seed) for seed in range(300)]
  counts = collections.Counter(step for plan in plans for step in plan)
  assert counts['a'] / len(plans) == pytest.approx(8 * 20 / 32, rel=0.1)
  assert counts['b'] / len(plans) == pytest.approx(8 * 10 / 32, rel=0.1)
  assert counts['c'] / len(plans) == pytest.approx(8 * 2 / 32, rel=0.3)


def test_a_plan_goes_up_to_the_end_of_the_data():
  assert _plan({'a': 1}, {'a': 0}) == ['a']
  assert _plan({'a': 0}, {}) == []
