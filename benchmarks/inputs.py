"""Times the Lingvo inputs: our adaptors against bare generators.

    python -m benchmarks.inputs --json=/tmp/inputs.json

Feeding: the training adaptor, against the same generator in plain TensorFlow: a
session's callable for records, a traced function for `tf.data`. Both read a
synthetic text. Each round builds both again, since speed differs between
instances, and reads in the order A, B, B, A; the order alternates between
rounds. A ratio is the median over the rounds of our batches per second over the
bare generator's in the same round, with quartiles; the goal is 0.95.

Evaluation: the eval adaptor reads whole epochs of 1,000, 10,000 and 100,000
short lines. `rise` is the rise of resident memory in megabytes; it should not
grow with the data. Nor should the time per example, except for Lingvo's reader:
in order, it returns the first 20,000 lines in 10 to 20 microseconds each, and
all others in 65 to 85. The bare generator needs 63 to 73.

Measured 2026-11-22, two idle cores of an AMD EPYC, Python 3.11, TensorFlow
2.21, --rounds=20:

    input                 ours/s    bare/s  ours/bare  quartiles
    text, one shape          248       252       1.00  0.89 1.10
    text, three buckets      247       261       0.96  0.92 1.00
    tf.data                  619       653       0.99  0.91 1.07
    examples   us each  of processors    rise MB
    1000          11.2           14.1        0.0
    10000         26.5           27.2        1.2
    100000        32.6           31.8        1.0

The adaptor's own overhead per batch, without the generator's call, is 15, 17
and 8 microseconds (medians) if only that is repeated, and 35, 41 and 23 in the
fastest tenth of batches with cold caches.
"""

import contextlib
import os
import pathlib
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors, input_adaptor
from benchmarks import command_line

_EXAMPLES = flags.DEFINE_list(
  'examples', ['1000', '10000', '100000'], 'Examples of the evaluations.'
)

_LINES = 20_000
_LETTERS = 48
_POLL_SECONDS = 0.02
_PAGE = os.sysconf('SC_PAGE_SIZE')


def write_lines(path: pathlib.Path, count: int) -> str:
  """Writes synthetic lines of 5 to 45 letters; returns their Lingvo pattern."""
  rng = random.Random(0)
  with open(path, 'w', encoding='ascii') as f:
    for number in range(count):
      f.write(f'{number:05d}' + 'x' * rng.randrange(_LETTERS - 8) + '\n')
  return f'text:{path}'


def lines_params(pattern: str, bounds: Sequence[int], rows: int) -> Any:
  """Returns Params of Lingvo's input for a character language model."""
  generators = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  return generators.LmInput.Params().Set(
    file_pattern=pattern,
    file_random_seed=0,
    file_buffer_size=1000,
    file_parallelism=1,
    bucket_upper_bound=list(bounds),
    bucket_batch_limit=[rows] * len(bounds),
    target_max_length=_LETTERS,
  )


def letters_params(path: pathlib.Path, rows: int) -> Any:
  """Returns Params of an endless character-level `tf.data` input."""
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def letters(line):
    ids = tf.cast(tf.io.decode_raw(line, tf.uint8), tf.int32)[:_LETTERS]
    return tf.pad(ids, [[0, _LETTERS - tf.size(ids)]])

  def batch_of(ids):
    paddings = tf.cast(tf.equal(ids, 0), tf.float32)
    return py_utils.NestedMap(ids=ids, labels=ids, paddings=paddings)

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      lines = tf.data.TextLineDataset(str(path)).repeat().map(letters)
      return lines.batch(rows).map(batch_of)

  return generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )


@contextlib.contextmanager
def bare_session(params: Any) -> Iterator[Callable[[], Any]]:
  """Yields a function that reads a batch of records in a session."""
  tf = lingvo_runtime.module('tensorflow')
  graph = tf.Graph()
  with lingvo_runtime.eager_flag(False), lingvo_runtime.cluster():
    with graph.as_default(), tf.device('/cpu:0'):
      batch = params.Copy().Instantiate().GetPreprocessedInputBatch()
      tensors = [x for x in batch.Flatten() if x.dtype != tf.string]
  with tf.compat.v1.Session(graph=graph) as session:
    session.run(tf.compat.v1.tables_initializer())
    yield session.make_callable(tensors)


@contextlib.contextmanager
def bare_function(params: Any) -> Iterator[Callable[[], Any]]:
  """Yields a function that reads a batch of `tf.data` in a `tf.function`."""
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.eager_flag(False), lingvo_runtime.cluster():
    generator = params.Copy().Instantiate()

    def read():
      return generator.GetPreprocessedInputBatch().Flatten()

    traced = tf.function(read, autograph=False).get_concrete_function()
  yield lambda: [x.numpy() for x in traced()]


def feeding(folder: pathlib.Path, rounds: int, batches: int) -> dict[str, Any]:
  """Returns batches per second and ratios, by input."""
  pattern = write_lines(folder / 'train.txt', _LINES)
  inputs = {
    'text, one shape': (lines_params(pattern, [_LETTERS], 64), bare_session),
    'text, three buckets': (
      lines_params(pattern, [16, 32, _LETTERS], 64),
      bare_session,
    ),
    'tf.data': (letters_params(folder / 'train.txt', 64), bare_function),
  }
  return {
    name: _compared(params, bare, rounds, batches)
    for name, (params, bare) in inputs.items()
  }


def _compared(params, bare, rounds: int, batches: int) -> dict[str, float]:
  seconds = {'ours': [], 'bare': []}
  for number in range(rounds):
    ours = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
    with contextlib.closing(ours), bare(params) as read:
      readers = [('ours', ours.get_next), ('bare', read)]
      if number % 2:
        readers.reverse()
      for _, reader in readers:
        _read(reader, batches)  # Warm-up: fills buffers and caches.
      found = {'ours': 0.0, 'bare': 0.0}
      for name, reader in [*readers, *reversed(readers)]:
        found[name] += _read(reader, batches) / 2
    for name, times in seconds.items():
      times.append(found[name])
  ratios = np.divide(seconds['bare'], seconds['ours'])
  lower, ratio, upper = map(float, np.percentile(ratios, [25, 50, 75]))
  return {
    'ratio': ratio,
    'lower': lower,
    'upper': upper,
    **{n: batches / statistics.median(times) for n, times in seconds.items()},
  }


def _read(read: Callable[[], Any], batches: int) -> float:
  start = time.perf_counter()
  for _ in range(batches):
    read()
  return time.perf_counter() - start


def evaluation(folder: pathlib.Path, examples: int) -> dict[str, float]:
  """Returns microseconds per example, and the rise of memory in megabytes.

  Args:
    folder: for the file.
    examples: number of examples.

  Returns:
    `microseconds` of wall time, of `processor` time, and `rise`.
  """
  pattern = write_lines(folder / f'{examples}.txt', examples)
  data = eval_adaptors.LingvoEvalAdaptor(
    input=lines_params(pattern, [_LETTERS], 64),
    batch_size=64,
    reset_for_eval=True,
  )
  with contextlib.closing(data):
    data.get_next()  # Builds the generator, which is not timed.
    rows = 64
    with _memory_rise() as rise:
      start, processor_start = time.perf_counter(), time.process_time()
      with contextlib.suppress(StopIteration):
        while True:
          rows += int(data.get_next().eval_sample_weights.sum())
      seconds = time.perf_counter() - start
      processor_seconds = time.process_time() - processor_start
  if rows != examples:
    raise RuntimeError(f'read {rows} of {examples} examples')
  return {
    'microseconds': 1e6 * seconds / (examples - 64),
    'processor': 1e6 * processor_seconds / (examples - 64),
    'rise': rise[0] / 1e6,
  }


@contextlib.contextmanager
def _memory_rise() -> Iterator[list[int]]:
  """Yields a list whose element becomes the rise of resident memory, bytes."""
  rise, is_over, before = [0], threading.Event(), _resident()

  def watch():
    while not is_over.wait(_POLL_SECONDS):
      rise[0] = max(rise[0], _resident() - before)

  watching = threading.Thread(target=watch)
  watching.start()
  try:
    yield rise
  finally:
    is_over.set()
    watching.join()


def _resident() -> int:
  with open('/proc/self/statm', encoding='ascii') as f:
    return int(f.read().split()[1]) * _PAGE


def text_of(result: dict[str, Any]) -> str:
  """Returns the results as lines of text."""
  lines = ['input                 ours/s    bare/s  ours/bare  quartiles']
  for name, row in result['feeding'].items():
    numbers = f'{row["ours"]:7.0f} {row["bare"]:9.0f} {row["ratio"]:10.2f}'
    quartiles = f'{row["lower"]:.2f} {row["upper"]:.2f}'
    lines.append(f'{name:<20} {numbers}  {quartiles}')
  lines.append('examples   us each  of processors    rise MB')
  for count, row in result['evaluation'].items():
    numbers = f'{row["microseconds"]:9.1f} {row["processor"]:14.1f}'
    lines.append(f'{count:<8} {numbers} {row["rise"]:10.1f}')
  return '\n'.join(lines)


def main(argv: list[str]):
  del argv
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    result = {
      'cpus': len(os.sched_getaffinity(0)),
      'feeding': feeding(
        folder, command_line.ROUNDS.value, command_line.BATCHES.value
      ),
      'evaluation': {
        count: evaluation(folder, int(count)) for count in _EXAMPLES.value
      },
    }
  print(text_of(result))
  command_line.write(result)


if __name__ == '__main__':
  app.run(main)
