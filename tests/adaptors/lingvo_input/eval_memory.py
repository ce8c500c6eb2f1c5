"""Tells how far memory rises while an evaluation reads a lot of data.

In a separate process nothing else allocates or frees memory meanwhile.
"""

import json
import sys

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

COUNT = 200_000
# Of an example; all of them together have 195 MiB.
_BYTES = 1024


def _wide(count: int, repeat: bool):
  """Returns Params of a tf.data input of examples of a kilobyte."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def dataset():
    firsts = tf.data.Dataset.range(0, count, 500)
    if repeat:
      firsts = firsts.repeat()

    def batch(first):
      x = tf.range(first, tf.minimum(first + 500, count))
      wide = tf.tile(x[:, None], [1, _BYTES // 8])
      return py_utils.NestedMap(wide=wide)

    return firsts.map(batch)

  return testing.tf_data_params(dataset)


def rise(*, by_count: bool) -> int:
  """Returns bytes by which resident memory rose at most.

  Args:
    by_count: whether the Params say how many examples there are.
  """
  params = _wide(COUNT, repeat=by_count)
  if by_count:
    params.Set(batch_size=64, num_samples=COUNT)
    cls, fields = eval_adaptors.LingvoLazyEvalAdaptor, {}
  else:
    cls, fields = eval_adaptors.LingvoEvalAdaptor, {'batch_size': 64}
  data = cls(
    input=params,
    reset_for_eval=True,
    num_infeed_hosts=2,
    infeed_host_index=1,
    **fields,
  )
  data.get_next()
  before = most = resources.held().resident
  seen = 64.0
  for number, batch in enumerate(iter(data.get_next_padded, None)):
    seen += batch.eval_sample_weights.sum()
    if number % 100 == 0:
      most = max(most, resources.resident())
    if not batch.eval_sample_weights.all():
      break
  # Of the last 64 of 200,000 = 1562 * 128 + 64 this host has none.
  assert seen == 1562 * 64
  assert data.num_samples == COUNT or not testing.drain(data)
  data.close()
  return most - before


def main():
  """Measures; the command line says `True` or `False` for `by_count`."""
  print(json.dumps(rise(by_count=sys.argv[1] == 'True')))


if __name__ == '__main__':
  main()
