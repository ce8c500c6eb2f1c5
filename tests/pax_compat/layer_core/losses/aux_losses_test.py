"""Auxiliary losses: who reads them adds them to the loss."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, base_model, optimizers, tasks_lib
from pax_compat.base_layer import AUX_LOSS, PARAMS, AuxLossStruct, WeightHParams
from pax_compat.config import Config, sub_config_field
from pax_compat.layer_core.losses import aux_losses
from pax_compat.layers import repeats
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program


class _Square(base_layer.BaseLayer):
  """Returns its input; the square of its weight is an auxiliary loss."""

  def setup(self):
    one = base_layer.WeightInit.Constant(1.5)
    self.create_variable('w', WeightHParams([], one))

  def __call__(self, inputs):
    self.add_aux_loss('square', jnp.square(self.theta.w), 0.25)
    return inputs


class _Reader(base_layer.BaseLayer):
  """Returns its child's output and losses, as `how` reads them.

  Attributes:
    how: the method, the collection as in Pax, or nothing.
    child_tpl: the layer with losses.
  """

  how: str = 'total'
  child_tpl: Config = sub_config_field(_Square)

  def setup(self):
    self.create_child('child', self.child_tpl)

  def __call__(self, inputs):
    outputs = self.child(inputs)
    if self.how == 'nothing':
      return outputs, AuxLossStruct(0.0, 0.0)
    if self.how == 'total':
      return outputs, self.total_aux_loss()
    value = weight = 0.0
    if AUX_LOSS in self.variables:
      for v in jax.tree_util.tree_leaves(
        self.variables[AUX_LOSS], is_leaf=lambda x: isinstance(x, AuxLossStruct)
      ):
        assert isinstance(v, AuxLossStruct)
        value += jnp.sum(v.value)
        weight += jnp.sum(v.weight)
    return outputs, AuxLossStruct(value, weight)


_STACK = repeats.Repeat.config(
  sub_tpl=_Square.config(), x_times=3, checkpoint_policy='save_nothing'
)
_IN_LAYERS = [(_Square.config(), 1), (_STACK, 3)]


@pytest.mark.parametrize('how', ['total', 'pax'])
@pytest.mark.parametrize('child, times', _IN_LAYERS)
def test_losses_that_are_read_count_once(how, child, times):
  layer = _Reader.config(how=how, child_tpl=child).Instantiate()
  variables = layer.init(jax.random.key(0), 1.0)
  (_, loss), updated = layer.apply(variables, 1.0, mutable=[AUX_LOSS])
  np.testing.assert_allclose(loss.value, times * 1.5**2)
  np.testing.assert_allclose(loss.weight, times * 0.25)
  # They stay in the collection.
  kept = aux_losses.total(updated[AUX_LOSS])
  np.testing.assert_allclose(kept.value, loss.value)
  assert not jax.tree.leaves(aux_losses.unread(updated[AUX_LOSS]))


@pytest.mark.parametrize('child, times', _IN_LAYERS)
def test_losses_that_nobody_reads(child, times):
  layer = _Reader.config(how='nothing', child_tpl=child).Instantiate()
  variables = layer.init(jax.random.key(0), 1.0)
  _, updated = layer.apply(variables, 1.0, mutable=[AUX_LOSS])
  left = aux_losses.total(aux_losses.unread(updated[AUX_LOSS]))
  np.testing.assert_allclose(left.value, times * 1.5**2)


def test_nothing_is_read_where_nothing_is_collected():
  layer = _Reader.config().Instantiate()
  _, loss = layer.apply(layer.init(jax.random.key(0), 1.0), 1.0)
  assert (loss.value, loss.weight) == (0, 0)


def test_other_variables_can_be_read():
  class Peek(_Reader):
    def __call__(self, inputs):
      outputs = self.child(inputs)
      found = self.variables
      assert set(found) == {PARAMS, AUX_LOSS} and found.get('other') is None
      self.sow('seen', 'leaves', len(jax.tree.leaves(found)))
      return outputs, found[PARAMS]['child']['w']

  layer = Peek.config().Instantiate()
  (_, w), updated = layer.apply(
    {PARAMS: {'child': {'w': 2.0}}}, 1.0, mutable=[AUX_LOSS, 'seen']
  )
  assert w == 2 and updated['seen'] == {'leaves': (3,)}
  left = aux_losses.unread(updated[AUX_LOSS])
  assert left == {'child': {'square': AuxLossStruct(4.0, 0.25)}}


def test_a_reader_within_a_scan_and_a_checkpoint():
  class Steps(base_layer.BaseLayer):
    def setup(self):
      self.create_child('reader', _Reader.config())

    def __call__(self, inputs):
      scan = nn.scan(
        nn.remat(lambda layer, x, _: layer(x)),
        variable_broadcast=PARAMS,
        variable_axes={AUX_LOSS: 0},
        length=4,
      )
      return scan(self.reader, inputs, None)[1].value

  layer = Steps.config().Instantiate()
  values, updated = layer.apply(
    {PARAMS: {'reader': {'child': {'w': 2.0}}}}, 1.0, mutable=[AUX_LOSS]
  )
  np.testing.assert_allclose(values, [4.0] * 4)
  assert aux_losses.total(updated[AUX_LOSS]).value == 16
  assert not jax.tree.leaves(aux_losses.unread(updated[AUX_LOSS]))


class _Model(base_model.BaseModel):
  """A model whose loss is what its reader returns, plus the child's weight.

  Attributes:
    reader_tpl: the reader.
  """

  reader_tpl: Config = sub_config_field(_Reader)

  def setup(self):
    self.create_child('reader', self.reader_tpl)

  def compute_predictions(self, input_batch):
    return self.reader(jnp.mean(input_batch.x))

  def compute_loss(self, predictions, input_batch):
    _, loss = predictions
    return NestedMap(loss=(jnp.float32(1) + loss.value, 1)), NestedMap()


@pytest.mark.parametrize('how', ['total', 'pax', 'nothing'])
def test_a_run_counts_each_loss_once(how):
  model = _Model.config(reader_tpl=_Reader.config(how=how))
  task = tasks_lib.SingleTask.config(model=model)
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  data = NestedMap(x=np.ones([8, 2], np.float32))
  mesh = partitioning.create_mesh(None, None)
  made = program.create(task.Instantiate(), mesh, data)
  state, outputs = made.train_step(made.init_state(data), made.put(data))
  np.testing.assert_allclose(outputs['loss'], 1 + 1.5**2)
  assert ('aux_loss' in outputs.weighted) == (how == 'nothing')
  evaluated = made.eval_step(state.mdl_vars, made.put(data))
  w = state.mdl_vars[PARAMS]['reader']['child']['w']
  np.testing.assert_allclose(evaluated['loss'], 1 + w**2, rtol=1e-6)
  assert w < 1.5
