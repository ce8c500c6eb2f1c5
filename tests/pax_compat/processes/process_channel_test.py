"""Tests of agreement without collectives, in real processes."""

import json

import pytest

from pax_compat import errors
from pax_compat.processes import process_channel
from tests.pax_compat import launching

_SCRIPT = """
  import json, threading, time
  from jax._src import distributed
  from pax_compat.processes import process_channel

  me = jax.process_index()
  other, channel = (process_channel.Channel('input') for _ in range(2))
  found = {'rounds': []}
  for number in range(5):
    time.sleep(0.01 * me * (number % 2))
    found['rounds'].append(channel.agree(f'{me}:{number}', ' '.join))
  found['all'] = [channel.all(True), channel.all(me != 1), channel.all(False)]
  found['of another channel'] = other.agree(f'other {me}', min)
  found['kept'] = sorted(
    {
      key.split('/')[-2]
      for key, _ in distributed.global_state.client.key_value_dir_get(
        'pax_compat/input/1/'
      )
    }
  )
  other.agree('looked', min)  # Before the keys of the next round.
  if me == 1:  # The others do not send a message in this round.
    threading.Timer(0.2, channel.leave).start()
    for _ in range(2):
      try:
        channel.agree('1', max)
      except process_channel.Left:
        found['left'] = found.get('left', 0) + 1
  print(json.dumps(found))
"""


def test_processes_agree():
  outputs = launching.run_on_processes(_SCRIPT, 3)
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
