"""A program whose processes agree without collectives."""

import json
import threading
import time

import jax
from jax._src import distributed

from pax_compat.processes import process_channel


def agree():
  """Prints, as JSON, what three processes agree on."""
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
