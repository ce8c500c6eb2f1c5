"""A model of several tasks."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.inputs.multi_task_input import TaskInput
from pax_compat.layers import MultiTaskModel
from pax_compat.nested_map import NestedMap
from tests.pax_compat.two_tasks import DIMS, Distance, Points, points


def _model(**tasks):
  tasks = tasks or {name: Distance.config(dims=n) for name, n in DIMS.items()}
  return MultiTaskModel.config(tasks=tasks).Instantiate()


def _variables(model):
  example = NestedMap({name: points(n, 1) for name, n in DIMS.items()})
  return base_layer.unbox(
    model.init({base_layer.PARAMS: jax.random.key(1)}, example)
  )


class Counting(Distance):
  """Its metrics count padding rows."""

  counts_padding_rows = True


def test_padding_rows_count_if_they_do_for_a_task():
  assert not _model().counts_padding_rows
  tasks = {'a': Distance.config(dims=2), 'b': Counting.config(dims=2)}
  assert _model(**tasks).counts_padding_rows


@pytest.mark.parametrize('task', DIMS)
def test_a_batch_is_of_one_task(task):
  model = _model()
  variables = _variables(model)
  batch = points(DIMS[task], 2)
  alone = Distance.config(dims=DIMS[task]).Instantiate()
  own = {name: tree[f'task_{task}'] for name, tree in variables.items()}
  with base_layer.eval_mode():
    found, per_example = model.apply(variables, NestedMap({task: batch}))
    wanted, each = alone.apply(own, batch)
    decoded = model.apply(variables, NestedMap({task: batch}), method='decode')
  assert found.keys() == {'loss', f'{task}/loss', f'{task}/rows'}
  np.testing.assert_array_equal(found['loss'], wanted['loss'])
  np.testing.assert_array_equal(found[f'{task}/loss'], wanted['loss'])
  np.testing.assert_array_equal(per_example[f'{task}/square'], each['square'])
  np.testing.assert_allclose(
    decoded[1].gap, batch.points - own['params']['w'], rtol=1e-6
  )
  data = TaskInput.config(
    name='dev', task=task, input=Points.config(name='inner')
  ).Instantiate()
  _, pairs, _ = model.process_decode_out(data, decoded[1])
  assert [key for key, _ in pairs] == ['inner'] * 4
  host = NestedMap({f'{task}.name': np.array(list('abcd'))})
  decoded = NestedMap(decoded[1], host_fields=host)
  _, pairs, _ = model.process_decode_out(data, decoded)
  assert [key for key, _ in pairs] == list('abcd')


def test_mistakes():
  model = _model()
  variables = _variables(model)
  with pytest.raises(errors.UserError, match='has long, short; expected one'):
    model.apply(variables, NestedMap({t: points(2, 1) for t in DIMS}))
  with pytest.raises(errors.UserError, match="task 'shrot'.*mean: short"):
    model.apply(variables, NestedMap(shrot=points(2, 1)))
  with pytest.raises(errors.UserError, match="'a/b'; only letters"):
    _variables(_model(**{'a/b': Distance.config()}))
  shared = Distance.config()
  with pytest.raises(errors.UserError, match='tasks cannot share weights'):
    _variables(_model(short=shared, long=shared))
