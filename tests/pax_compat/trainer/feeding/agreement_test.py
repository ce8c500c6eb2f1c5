"""Processes that read different data raise; none waits forever."""

from pax_compat.trainer.feeding import agreement
from tests.pax_compat import launching


def test_a_single_process_agrees_with_itself():
  alone = agreement.CrossHostCheck('Dev')
  alone.check('ids[4,7]', b'any')
  alone.check(None, None)


def test_processes_compare_what_they_read():
  outputs = launching.run_on_processes(
    """
    import jax
    from pax_compat import errors
    from pax_compat.trainer.feeding import agreement

    me = jax.process_index()
    same = agreement.CrossHostCheck('Dev')
    for order in (b'a', b'b', None):
      same.check('ids[4,7]', order)
    same.check(None, b'c')
    for last in (
      ('ids[4,7]' if me == 0 else None, b'a'),
      (f'ids[4,{7 + (me == 1)}]', b'a'),
      ('ids[4,7]', b'xyz'[me:me + 1]),
      (None, b'xyz'[me:me + 1]),
    ):
      other = agreement.CrossHostCheck('Dev')
      other.check('ids[4,7]', b'b')
      try:
        other.check(*last)
      except errors.UserError as e:
        print(e)
    """,
    3,
  )
  assert outputs[0] == outputs[1] == outputs[2]
  short, shape, order, at_end = outputs[0].splitlines()
  for line in (short, shape, order, at_end):
    assert "dataset 'Dev' is not the same" in line
  assert 'after batch 1, the last one on processes 1, 2, there are' in short
  assert 'more on 0;' in short
  assert 'batch 2 has another shape on processes 1 than on process 0' in shape
  for line in (order, at_end):
    assert 'batch 2 has other examples in it' in line
    assert 'on processes 1, 2 than' in line


def test_processes_that_hold_the_same_rows_must_read_the_same():
  outputs = launching.run_on_processes(
    """
    import numpy as np
    from pax_compat import errors
    from pax_compat.nested_map import NestedMap
    from pax_compat.trainer.feeding import agreement
    from tests.pax_compat.trainer import lines

    me = jax.process_index()

    def check(hosts, host, batches):
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

    check(3, me, [me, me])
    check(1, 0, [7, 8])
    check(2, me // 2, [me // 2])
    check(2, me // 2, [7, me])
    """,
    3,
  )
  assert outputs[0] == outputs[1] == outputs[2]
  *same, differ = outputs[0].splitlines()
  assert same == ['same'] * 6
  assert "dataset 'Train' is not the same on the processes 0, 1," in differ


def test_an_evaluation_on_data_that_differs_ends_with_an_error():
  outputs = launching.run_on_processes(
    """
    import jax
    import numpy as np
    from pax_compat import base_input, errors
    from pax_compat.nested_map import NestedMap
    from pax_compat.trainer.evaluating import evaluation

    class Numbers(base_input.BaseInput):
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

    for count, order in (
      (3, b'abc'),
      (3 - jax.process_index(), b'abc'),
      (3, b'a' + b'bx'[jax.process_index() :] + b'c'),
    ):
      data = Numbers(
        name='Dev', reset_for_eval=True, input_random_seed=count
      )
      data.order = order
      read = 0
      try:
        for read, _ in enumerate(evaluation.all_batches(data, lambda b: b), 1):
          pass
        print(read)
      except errors.UserError as e:
        print(read, e)
    """,
    2,
  )
  assert outputs[0] == outputs[1]
  same, fewer, others = outputs[0].splitlines()
  assert same == '3'
  assert 'after batch 2, the last one on processes 1, there are more' in fewer
  # Before the first batch that differs is evaluated.
  assert others.startswith("1 the dataset 'Dev' is not the same")
  assert 'batch 2 has other examples in it' in others
