"""Rows with fields that stay on the host, with the number of each row."""

import jax
import numpy as np

from pax_compat.nested_map import NestedMap
from tests.pax_compat.trainer import lines


class NamedRows(lines.Rows):
  """Rows that have names, and make metrics of all of them.

  Attributes:
    kinds: 'eval' and 'decode', for what it makes metrics.
  """

  kinds: tuple[str, ...] = ('eval', 'decode')

  def get_next(self):
    size = self.batch_size
    mine = (self.read * self.num_infeed_hosts + self.infeed_host_index) * size
    batch = super().get_next()
    numbers = np.arange(mine, mine + size)
    # Neither UTF-8 nor free of zeros, and of different lengths.
    names = [b'\xff\0' * n + b'%d\0' % n for n in numbers]
    batch.names = NestedMap(
      raw=np.array(names, object), text=np.array([f'é{n}' for n in numbers])
    )
    batch.number = numbers
    return batch

  def is_host_field(self, path, leaf):
    return path == 'number' or super().is_host_field(path, leaf)

  def has_example_metrics(self, kind):
    return kind in self.kinds

  def example_metrics(self, kind, examples):
    assert jax.process_index() == 0
    return {
      'examples': len(examples),
      'different': len({host['number'].item() for host, _ in examples}),
      'right': np.mean([is_right(host, made['x']) for host, made in examples]),
    }


def is_right(host, x) -> bool:
  """Returns whether the fields of a row belong to its `x`."""
  number = int(host['number'])
  return (
    host['names.raw'] == b'\xff\0' * number + b'%d\0' % number
    and host['names.text'] == f'é{number}'
    and bool(np.array_equal(x, lines.rows(number, count=1).x[0]))
  )


class Echo(lines.Line):
  """Decodes `x` itself.

  Attributes:
    pairs: whether there are pairs of 'all' rows, of those that count, or of
      'one' row.
  """

  pairs: str = 'counted'

  def decode(self, input_batch):
    assert set(input_batch) == {'x', 'y', 'eval_sample_weights'}
    weighted, decoded, clu = super().decode(input_batch)
    return weighted, NestedMap(decoded, x=input_batch.x), clu

  def process_decode_out(self, input_obj, decode_out):
    host = decode_out.host_fields
    assert host.number.shape == host['names.raw'].shape == decode_out.y.shape
    rows = {
      'all': range(len(host.number)),
      'counted': np.flatnonzero(decode_out.weights),
      'one': [0],
    }[self.pairs]
    pairs = [
      (host['names.text'][row], {'x': decode_out.x[row]}) for row in rows
    ]
    return NestedMap(), pairs, NestedMap()


class NamedLines(lines.Lines):
  """An experiment on such rows."""

  def datasets(self):
    return [
      NamedRows.config(name='train', is_training=True, batch_padding_size=2),
      NamedRows.config(name='dev', end=10, reset_for_eval=True),
    ]

  def decode_datasets(self):
    few = NamedRows.config(name='few', end=6, reset_for_eval=True)
    return [few.set(batch_padding_size=2)]
