"""Measures padding when several hosts must agree on the shape of each batch.

    python -m benchmarks.input_hosts --hosts=1,2,4 --batches=300

Each host is a process, and reads different sentence pairs with the input
generator of Lingvo's translation tasks, in the buckets of the stock WMT
Transformer with an eighth of their batch sizes. It prints:

*   `real`: the fraction of positions that are not padding. With one host this
    is the optimum for the buckets, and the goal for several;
*   `one shape`: the same fraction if all batches were padded to one shape, the
    most examples by the longest sentences;
*   `weightless`: the fraction of batches with weight 0, which a host returns if
    it has none of the agreed shape;
*   milliseconds per batch, with all hosts on the same processors.

Measured 2026-11-22, two cores of an AMD EPYC shared with other work, Python
3.11, TensorFlow 2.21:

    hosts  real  one shape  weightless  ms a batch
    1      0.79       0.08       0.000         2.1
    2      0.79       0.08       0.000         1.6
    4      0.79       0.08       0.000         6.1
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import app, flags

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from benchmarks import command_line

_HOSTS = flags.DEFINE_list('hosts', ['1', '2', '4'], 'Numbers of hosts.')

_BOUNDS = (10, 14, 19, 26, 36, 50, 70, 98)
_LIMITS = (64, 45, 33, 24, 17, 12, 9, 6)
_PAIRS = 10_000
_SCRIPT = """
import json, pathlib, sys
import jax
from benchmarks import input_hosts

folder, batches, address, hosts, host = json.loads(sys.argv[1])
jax.distributed.initialize(address, hosts, host)
counts = input_hosts.read(pathlib.Path(folder), batches, hosts, host)
print(json.dumps(counts))
"""


def write_pairs(folder: pathlib.Path, files: int, pairs: int):
  """Writes files of synthetic sentence pairs, mostly of 10 to 40 pieces."""
  tf = lingvo_runtime.module('tensorflow')
  rng = np.random.default_rng(0)
  for number in range(files):
    with tf.io.TFRecordWriter(str(folder / f'{number}.tfrecord')) as writer:
      for _ in range(pairs):
        source = int(np.clip(rng.lognormal(3.1, 0.55), 3, 96))
        target = int(np.clip(source * rng.uniform(0.8, 1.2), 3, 96))
        writer.write(_pair(tf, source, target))


def _pair(tf: Any, source: int, target: int) -> bytes:
  """Returns a tf.Example of a sentence pair with these numbers of pieces."""

  def ids(length):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[5] * length))

  def values(length, value):
    floats = tf.train.FloatList(value=[value] * length)
    return tf.train.Feature(float_list=floats)

  features = dict(
    source_id=ids(source),
    source_padding=values(source, 0.0),
    target_id=ids(target),
    target_padding=values(target, 0.0),
    target_label=ids(target),
    target_weight=values(target, 1.0),
  )
  return tf.train.Example(
    features=tf.train.Features(feature=features)
  ).SerializeToString()


def read(
  folder: pathlib.Path, batches: int, hosts: int, host: int
) -> dict[str, float]:
  """Reads as one of several hosts, which read at the same time.

  Returns:
    Numbers of `all` positions, of `real` ones, and of positions padded to
    `one_shape`; `seconds`; and the number of `weightless` batches.
  """
  generators = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  params = generators.NmtInput.Params().Set(
    file_pattern=f'tfrecord:{folder}/*.tfrecord',
    file_random_seed=0,
    file_parallelism=1,
    file_buffer_size=_PAIRS,
    bucket_upper_bound=list(_BOUNDS),
    bucket_batch_limit=list(_LIMITS),
  )
  data = input_adaptor.LingvoInputAdaptor(
    input=params,
    is_training=True,
    num_infeed_hosts=hosts,
    infeed_host_index=host,
  )
  sides = 2
  with contextlib.closing(data):
    data.get_next()  # Builds the generator, which is not timed.
    positions = real = 0
    began = time.perf_counter()
    for _ in range(batches):
      batch = data.get_next()
      for side in (batch.src, batch.tgt):
        positions += side.paddings.size
        real += int((1 - side.paddings).sum())
    return {
      'all': positions,
      'real': real,
      'one_shape': sides * batches * max(_LIMITS) * (_BOUNDS[-1] + 1),
      'seconds': time.perf_counter() - began,
      'weightless': data.input_metrics().get('input/weightless_batches', 0),
    }


def of_hosts(counts: list[dict[str, float]], batches: int) -> dict[str, float]:
  """Aggregates the results of `read` over hosts."""
  total = {key: sum(one[key] for one in counts) for key in counts[0]}
  count = len(counts) * batches
  return {
    'real': total['real'] / total['all'],
    'one_shape': total['real'] / total['one_shape'],
    'weightless': total['weightless'] / count,
    'milliseconds': 1e3 * total['seconds'] / count,
  }


def _read_together(
  folder: pathlib.Path, batches: int, hosts: int
) -> list[dict[str, float]]:
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  processes = [
    subprocess.Popen(
      [
        sys.executable,
        '-c',
        _SCRIPT,
        json.dumps([str(folder), batches, address, hosts, host]),
      ],
      stdout=subprocess.PIPE,
      text=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    )
    for host in range(hosts)
  ]
  outputs = [process.communicate()[0] for process in processes]
  return [json.loads(output.splitlines()[-1]) for output in outputs]


def text_of(result: dict[str, dict[str, float]]) -> str:
  """Returns the results as lines of text."""
  lines = ['hosts  real  one shape  weightless  ms a batch']
  for hosts, row in result.items():
    lines.append(
      f'{hosts:<5} {row["real"]:5.2f} {row["one_shape"]:10.2f}'
      f' {row["weightless"]:11.3f} {row["milliseconds"]:11.1f}'
    )
  return '\n'.join(lines)


def main(argv: list[str]):
  del argv
  result = {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    counts = [int(count) for count in _HOSTS.value]
    write_pairs(folder, files=max(counts), pairs=_PAIRS)
    for count in counts:
      counted = _read_together(folder, command_line.BATCHES.value, count)
      result[str(count)] = of_hosts(counted, command_line.BATCHES.value)
  print(text_of(result))
  command_line.write(result)


if __name__ == '__main__':
  app.run(main)
