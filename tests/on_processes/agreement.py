"""Programs that compare what processes read."""

import jax
import numpy as np
from absl import logging

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import evaluation
from pax_compat.trainer.feeding import agreement
from tests.pax_compat.trainer import lines


def check_hosts():
  """Prints the errors of datasets that differ on three processes."""
  me = jax.process_index()
  same = agreement.CrossHostCheck('Dev')
  for order in (b'a', b'b', None):
    same.check('ids[4,7]', order)
  same.check(None, b'c')
  for last in (
    ('ids[4,7]' if me == 0 else None, b'a'),
    (f'ids[4,{7 + (me == 1)}]', b'a'),
    ('ids[4,7]', b'xyz'[me : me + 1]),
    (None, b'xyz'[me : me + 1]),
  ):
    other = agreement.CrossHostCheck('Dev')
    other.check('ids[4,7]', b'b')
    try:
      other.check(*last)
    except errors.UserError as e:
      print(e)


def check_replica_rows():
  """Prints whether three processes with the same rows read the same."""
  me = jax.process_index()
  _check_batches(3, me, [me, me])
  _check_batches(1, 0, [7, 8])
  _check_batches(2, me // 2, [me // 2])
  _check_batches(2, me // 2, [7, me])


def _check_batches(hosts, host, batches):
  data = lines.Rows(
    name='Train', num_infeed_hosts=hosts, infeed_host_index=host
  )
  rows = agreement.ReplicaRowCheck(data)
  texts = np.array(['a', 'b'], object)
  for x in batches:
    batch = NestedMap(x=np.array([1, x]), text=texts)
    rows.record(batch)
    try:
      rows.check(rows.digest())
      print('same')
    except errors.UserError as e:
      print(e)


def warn_of_equal_batches():
  """Prints the warnings about first batches of three processes."""
  warnings = []
  logging.warning = lambda text, *args: warnings.append(text % args)
  me = jax.process_index()
  for hosts, host, x, weight in (
    (3, me, me, 1.0),
    (3, me, max(me, 1), 1.0),
    (3, me, max(me, 1), float(me)),  # That of host 0 is padding.
    (2, me // 2, me // 2, 1.0),
    (1, 0, 0, 1.0),
  ):
    data = lines.Rows(
      name='Train', num_infeed_hosts=hosts, infeed_host_index=host
    )
    agreement.warn_of_equal_batches(
      data, NestedMap(x=np.array([x]), eval_sample_weights=np.array([weight]))
    )
  print('\n'.join(warnings))


class Numbers(base_input.BaseInput):
  """Returns as many batches as its seed, in the order of a digest."""

  given = 0
  order = b''

  def get_next(self):
    if self.given == self.input_random_seed:
      raise StopIteration
    self.given += 1
    return NestedMap(x=np.zeros([2]))

  def reset(self):
    self.given = 0

  def order_digest(self):
    return self.order[: self.given]


def read_all_batches():
  """Prints how many batches an evaluation reads, and its error."""
  for count, order in (
    (3, b'abc'),
    (3 - jax.process_index(), b'abc'),
    (3, b'a' + b'bx'[jax.process_index() :] + b'c'),
  ):
    data = Numbers(name='Dev', reset_for_eval=True, input_random_seed=count)
    data.order = order
    read = 0
    try:
      for _ in evaluation.all_batches(data, lambda b: b):
        read += 1
      print(read)
    except errors.UserError as e:
      print(read, e)
