"""Tests of agreement without collectives, in real processes."""

import json

import pytest

from pax_compat import errors
from pax_compat.processes import process_channel
from tests.on_processes import channel
from tests.pax_compat import launching


def test_processes_agree():
  outputs = launching.run_on_processes(channel.agree, 3)
  found = [json.loads(output.splitlines()[-1]) for output in outputs]
  assert found[1].pop('left') == 2
  for one in found:
    assert one['rounds'] == [f'0:{n} 1:{n} 2:{n}' for n in range(5)]
    assert one['all'] == [True, False, False]
    assert one['of another channel'] == 'other 0'
  # Of eight rounds, only the keys of the last one remain.
  assert found[0]['kept'] == ['7']


def test_a_single_process_cannot_open_a_channel():
  with pytest.raises(errors.UserError, match='--multiprocess'):
    process_channel.Channel('input')
