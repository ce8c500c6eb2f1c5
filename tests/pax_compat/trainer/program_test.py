"""The compiled steps of a tiny language model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, base_model, errors, optimizers, tasks_lib
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, WeightHParams
from pax_compat.layers import embedding_softmax, models, stochastics
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from pax_compat.weight_init import WeightInit
from tests.pax_compat import processes
from tests.pax_compat.trainer import tiny


@pytest.fixture(scope='module')
def made():
  return tiny.make_program()


def test_training_lowers_the_loss(made):
  state, history = tiny.train(made, 40)
  losses = [metrics['loss'] for metrics in history]
  # A model that knows nothing is at log(16) = 2.8 nats.
  assert losses[0] > 2 and losses[-1] < 0.5 * losses[0]
  assert state.step == 40
  assert all(np.isfinite(list(m.values())).all() for m in history)
  assert {'learning/lr', 'learning/raw_grad_norm', 'log_pplx'} <= set(
    history[0]
  )


def test_the_state_is_donated(made):
  first = made.init_state(tiny.batch())
  made.train_step(first, tiny.put(made, tiny.batch()))
  assert all(x.is_deleted() for x in jax.tree.leaves(first))


def test_the_first_state_depends_on_the_seed_only(made):
  one, again = made.init_state(tiny.batch(0)), made.init_state(tiny.batch(1))
  jax.tree.map(np.testing.assert_array_equal, one, again)
  other = tiny.make_program(tiny.task(random_seed=5)).init_state(tiny.batch())
  table = one.mdl_vars[PARAMS]['lm']['embedding']['emb_var']
  assert not np.array_equal(
    table, other.mdl_vars[PARAMS]['lm']['embedding']['emb_var']
  )


def test_the_state_is_as_announced(made):
  state = made.init_state(tiny.batch())

  def check(announced, x):
    assert (announced.shape, announced.dtype) == (x.shape, x.dtype)
    assert x.sharding.is_equivalent_to(announced.sharding, x.ndim)

  jax.tree.map(check, made.abstract_state, state)


def test_eval_step_is_the_model_without_learning(made):
  state = made.init_state(tiny.batch())
  data = tiny.batch(3)
  metrics = made.eval_step(state.mdl_vars, tiny.put(made, data))
  with base_layer.eval_mode():
    want, _ = made.model.apply(state.mdl_vars, data)
  for name, (value, weight) in metrics.items():
    np.testing.assert_allclose(value, want[name][0], rtol=1e-6)
    np.testing.assert_allclose(weight, want[name][1], rtol=1e-6)
  assert metrics['loss'][1] == 8 * tiny.LENGTH
  assert not state.step.is_deleted()


def test_gradients_are_those_of_the_loss(made):
  """One step of plain gradient descent, worked out beside the program."""
  task = tiny.task()
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.5)
  plain = tiny.make_program(task)
  before = jax.tree.map(np.asarray, plain.init_state(tiny.batch()).mdl_vars)

  def loss(params):
    metrics, _ = plain.model.apply({PARAMS: params}, tiny.batch(0))
    return metrics['loss'][0]

  gradients = jax.grad(loss)(before[PARAMS])
  state, _ = tiny.train(plain, 1)
  jax.tree.map(
    lambda new, old, g: np.testing.assert_allclose(
      new, old - 0.5 * g, rtol=1e-5, atol=1e-6
    ),
    state.mdl_vars[PARAMS],
    before[PARAMS],
    gradients,
  )


class Noisy(base_model.BaseModel):
  """Says all that a model can say: a loss of w^2 + 10 w, and noise."""

  def setup(self):
    self.create_variable('w', WeightHParams([], WeightInit.Constant(3.0)))
    self.create_variable(
      'calls', WeightHParams([], WeightInit.Constant(0.0)), trainable=False
    )
    self.create_child('dropout', stochastics.Dropout.config(keep_prob=0.5))

  def compute_predictions(self, input_batch):
    if not self.do_eval:
      self.update_var('calls', self.theta.calls + 1)
    self.add_summary('seen', jnp.sum(input_batch.x))
    self.add_aux_loss('extra', 10 * self.theta.w)
    return self.dropout(input_batch.x)

  def compute_loss(self, predictions, input_batch):
    kept = jnp.mean(predictions != 0)
    return NestedMap(loss=(self.theta.w**2, 1), kept=(kept, 1)), NestedMap()


def test_what_else_a_model_may_say():
  task = tasks_lib.SingleTask.config(model=Noisy.config())
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  data = NestedMap(x=np.ones([8, 100], np.float32))
  mesh = partitioning.create_mesh(None, None)
  made = program.create(task, mesh, data)
  state = made.init_state(data)
  # What was said while the model was initialised is not part of the state.
  assert set(state.mdl_vars) == {PARAMS, NON_TRAINABLE}
  calls = [float(state.mdl_vars[NON_TRAINABLE]['calls'])]
  history = []
  for _ in range(3):
    state, metrics = made.train_step(state, tiny.put(made, data))
    assert set(state.mdl_vars) == {PARAMS, NON_TRAINABLE}
    calls.append(float(state.mdl_vars[NON_TRAINABLE]['calls']))
    history.append(metrics)
  # Each step has noise of its own, and sees what the last one left.
  assert len({float(metrics['kept']) for metrics in history}) == 3
  assert calls == [0, 1, 2, 3]
  # A summary stands under its name, once.
  assert [k for k in history[0] if 'seen' in k] == ['seen']
  assert all(metrics['seen'] == 800 for metrics in history)
  # w <- w - 0.1 * (2 w + 10), from 3: the auxiliary loss has its gradient.
  w = -5 + 8 * 0.8 ** np.arange(4)
  np.testing.assert_allclose(state.mdl_vars[PARAMS]['w'], w[3], rtol=1e-5)
  aux_losses = [metrics['aux_loss'] for metrics in history]
  np.testing.assert_allclose(aux_losses, 10 * w[:3], rtol=1e-5)
  # At evaluation nothing is dropped, and nothing asked for keys.
  evaluated = made.eval_step(state.mdl_vars, tiny.put(made, data))
  assert evaluated['kept'][0] == 1


def test_a_loss_that_the_model_has_not():
  task = tiny.task()
  task.train.learner.loss_name = 'los'
  made = tiny.make_program(task)
  with pytest.raises(errors.UserError, match="metric 'los', .*mean: loss"):
    made.train_step(made.init_state(tiny.batch()), tiny.batch())


def test_a_required_field_is_named_by_its_full_path():
  task = tasks_lib.SingleTask.config(model=models.LanguageModel.config())
  with pytest.raises(
    errors.UserError, match=r'task\.model\.lm: \S+\.\w+ is required'
  ):
    tiny.make_program(task)


class Pulled(base_model.BaseModel):
  """Pulls at the vectors of `ids` [B] with the given forces [B, 3]."""

  def setup(self):
    self.create_child(
      'table',
      embedding_softmax.Embedding.config(
        num_classes=4, input_dims=3, sparse_gradients=True
      ),
    )

  def compute_predictions(self, input_batch):
    return jnp.sum(self.table(input_batch.ids) * input_batch.forces)

  def compute_loss(self, predictions, input_batch):
    return NestedMap(loss=(predictions, 1.0)), NestedMap()


def test_facts_about_looked_up_rows_reach_the_learner():
  task = tasks_lib.SingleTask.config(model=Pulled.config())
  forces = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  data = NestedMap(ids=np.int32([0, 0, 0, 1, 1, 2, 2, 2]), forces=forces)
  made = program.create(task, partitioning.create_mesh(None, None), data)
  state = made.init_state(data)
  assert set(state.mdl_vars) == {PARAMS}
  _, metrics = made.train_step(state, tiny.put(made, data))
  # Each lookup counts by itself; the dense gradient has another norm.
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt((forces**2).sum()), rtol=1e-6
  )


_EIGHT_DEVICES = """
  import sys
  import jax
  import numpy as np
  from jax.sharding import PartitionSpec as P
  from pax_compat.trainer import partitioning
  from tests.pax_compat.trainer import tiny

  mesh = partitioning.create_mesh((2, 2, 2), ('replica', 'data', 'mdl'))
  made = tiny.make_program(tiny.task(split=True), mesh)
  state, history = tiny.train(made, 3)
  lm = state.mdl_vars['params']['lm']
  layer = lm['transformer']['x_layers_0']
  adam = state.opt_state.optimizer[0][1]
  for tree in (lm, adam.mu['lm'], adam.nu['lm']):
    layer = tree['transformer']['x_layers_0']
    first = layer['ff_layer']['ffn_layer1']
    softmax = tree['softmax']['logits_ffn']
    for array, spec, part in (
      (tree['embedding']['emb_var'], P('mdl', 'data'), (8, 4)),
      (softmax['linear']['w'], P(None, 'mdl'), (8, 8)),
      (softmax['bias']['b'], P('mdl'), (8,)),
      (first['linear']['w'], P('data', 'mdl'), (4, 8)),
      (first['bias']['b'], P('mdl'), (8,)),
      (layer['self_attention']['atten']['key']['w'],
       P(None, 'mdl', None), (8, 1, 4)),
      (layer['ff_layer']['layer_norm']['scale'], P(), (8,)),
    ):
      want = jax.sharding.NamedSharding(mesh, spec)
      assert array.sharding.is_equivalent_to(want, array.ndim), array.sharding
      assert len(array.addressable_shards) == 8
      assert array.addressable_shards[0].data.shape == part
  assert adam.count.sharding.is_fully_replicated
  data = tiny.put(made, tiny.batch())
  assert data.ids.addressable_shards[0].data.shape == (2, tiny.LENGTH)
  loss, _ = made.eval_step(state.mdl_vars, data)['loss']
  print(*(m['loss'] for m in history), float(loss))
"""


def test_a_mesh_of_eight_devices_computes_what_one_device_does():
  printed = processes.run_on_eight_devices(_EIGHT_DEVICES)
  one = partitioning.create_mesh(None, None)
  made = tiny.make_program(mesh=one)
  state, history = tiny.train(made, 3)
  loss, _ = made.eval_step(state.mdl_vars, tiny.batch())['loss']
  want = [m['loss'] for m in history] + [float(loss)]
  np.testing.assert_allclose(
    [float(x) for x in printed.split()], want, rtol=1e-6
  )
