"""Tells as JSON what inputs leave behind that were read from and closed.

In a separate process nothing else starts or ends meanwhile.
"""

import gc
import json
import pathlib
import sys

from adaptors.lingvo_input import input_adaptor
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

CYCLES = 20
READERS = ('records', 'records that end', 'tf.data')


def left_behind(reader: str, folder: pathlib.Path) -> resources.Held:
  """Returns by how much the process holds more after many inputs."""
  lines = testing.unique_lines(100)
  pattern = testing.write_lines(folder / 'lines.txt', lines)
  if reader == 'tf.data':
    params = testing.numbers(100, repeat=True, threads=2)
  else:
    count = 1 if reader == 'records that end' else -1
    params = testing.lm_params(pattern, repeat_count=count)

  def read_and_close():
    data = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
    for _ in range(2):
      data.get_next()
    data.close()

  for _ in range(5):  # The first ones start TensorFlow's own pools.
    read_and_close()
  before, threads = resources.held(), resources.threads()
  gc.disable()  # Threads end when an input is closed, not some time after.
  try:
    for _ in range(CYCLES):
      read_and_close()
    resources.wait_for_end(resources.threads() - threads)
  finally:
    gc.enable()
  return resources.held().more_than(before)


def main():
  """Looks at each kind of reader; the command line names a folder for them."""
  folder = pathlib.Path(sys.argv[1])
  print(json.dumps({r: left_behind(r, folder)._asdict() for r in READERS}))


if __name__ == '__main__':
  main()
