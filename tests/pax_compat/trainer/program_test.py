"""The compiled steps of a tiny language model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import (
  base_layer,
  base_metrics,
  base_model,
  errors,
  optimizers,
  tasks_lib,
)
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, WeightHParams
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import embedding_softmax, stochastics
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.pax_compat.trainer import lines, tiny


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
  made.train_step(first, made.put(tiny.batch()))
  assert all(x.is_deleted() for x in jax.tree.leaves(first))


def test_the_initial_state_depends_on_the_seed_only(made):
  one, again = made.init_state(tiny.batch(0)), made.init_state(tiny.batch(1))
  jax.tree.map(np.testing.assert_array_equal, one, again)
  other = tiny.make_program(tiny.task(random_seed=5)).init_state(tiny.batch())
  one, other = (
    x.mdl_vars[PARAMS]['lm']['softmax']['logits_ffn']['linear']['w']
    for x in (one, other)
  )
  assert not np.array_equal(one, other)


def test_the_state_is_as_announced(made):
  state = made.init_state(tiny.batch())

  def check(announced, x):
    assert (announced.shape, announced.dtype) == (x.shape, x.dtype)
    assert x.sharding.is_equivalent_to(announced.sharding, x.ndim)

  jax.tree.map(check, made.abstract_state, state)


def test_eval_step_is_the_model_without_learning(made):
  state = made.init_state(tiny.batch())
  data = tiny.batch(3)
  outputs = made.eval_step(state.mdl_vars, made.put(data))
  with base_layer.eval_mode():
    want, _ = made.model.apply(state.mdl_vars, data)
  assert outputs.weighted.keys() == want.keys()
  for name, (value, weight) in outputs.weighted.items():
    np.testing.assert_allclose(value, want[name][0], rtol=1e-6)
    np.testing.assert_allclose(weight, want[name][1], rtol=1e-6)
  assert outputs.weighted['loss'][1] == 8 * tiny.LENGTH
  assert not state.step.is_deleted()


def test_gradients_are_those_of_the_loss(made):
  """A step of plain gradient descent, computed independently."""
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
  """Has every kind of output: a loss of w^2 + 10 w, and noise."""

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


def test_other_outputs_of_a_model():
  task = tasks_lib.SingleTask.config(model=Noisy.config())
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  data = NestedMap(x=np.ones([8, 100], np.float32))
  mesh = partitioning.create_mesh(None, None)
  made = program.create(task.Instantiate(), mesh, data)
  state = made.init_state(data)
  # Summaries of the initialisation are not part of the state.
  assert set(state.mdl_vars) == {PARAMS, NON_TRAINABLE}
  calls = [float(state.mdl_vars[NON_TRAINABLE]['calls'])]
  history = []
  for _ in range(3):
    state, outputs = made.train_step(state, made.put(data))
    assert set(state.mdl_vars) == {PARAMS, NON_TRAINABLE}
    calls.append(float(state.mdl_vars[NON_TRAINABLE]['calls']))
    history.append(outputs)
  # Each step has noise of its own, and sees what the last one left.
  assert len({float(outputs['kept']) for outputs in history}) == 3
  assert calls == [0, 1, 2, 3]
  # A summary stands under its name, once.
  names = history[0].scalar_names()
  assert [name for name in names if 'seen' in name] == ['seen']
  assert all(outputs['seen'] == 800 for outputs in history)
  # w <- w - 0.1 * (2 w + 10), from 3: the auxiliary loss has its gradient.
  w = -5 + 8 * 0.8 ** np.arange(4)
  np.testing.assert_allclose(state.mdl_vars[PARAMS]['w'], w[3], rtol=1e-5)
  aux_losses = [outputs['aux_loss'] for outputs in history]
  np.testing.assert_allclose(aux_losses, 10 * w[:3], rtol=1e-5)
  # As in Pax, the reported loss has it, too.
  losses = [outputs['loss'] for outputs in history]
  np.testing.assert_allclose(losses, w[:3] ** 2 + 10 * w[:3], rtol=1e-5)
  # At evaluation nothing is dropped, and nothing asked for keys.
  evaluated = made.eval_step(state.mdl_vars, made.put(data))
  assert evaluated['kept'] == 1
  np.testing.assert_allclose(
    evaluated['loss'], w[3] ** 2 + 10 * w[3], rtol=1e-5
  )


def test_a_loss_that_is_not_a_metric_of_the_model():
  task = tiny.task()
  task.train.learner.loss_name = 'los'
  made = tiny.make_program(task)
  with pytest.raises(
    errors.UserError, match="loss_key names 'los', .*mean: .*loss"
  ):
    made.train_step(made.init_state(tiny.batch()), tiny.batch())


class Pulled(base_model.BaseModel):
  """Has the given gradients [B, 3] for the vectors of `ids` [B]."""

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


def test_metadata_of_looked_up_rows_reaches_the_learner():
  task = tasks_lib.SingleTask.config(model=Pulled.config())
  task.train.learner.optimizer = optimizers.Sgd.config(learning_rate=0.1)
  forces = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  data = NestedMap(ids=np.int32([0, 0, 0, 1, 1, 2, 2, 2]), forces=forces)
  made = program.create(
    task.Instantiate(), partitioning.create_mesh(None, None), data
  )
  state = made.init_state(data)
  assert set(state.mdl_vars) == {PARAMS}
  _, metrics = made.train_step(state, made.put(data))
  # Each lookup counts by itself; the dense gradient has another norm.
  np.testing.assert_allclose(
    metrics['learning/raw_grad_norm'], np.sqrt((forces**2).sum()), rtol=1e-6
  )


def _lines_program(**changes):
  task = lines.task()
  for name, value in changes.items():
    setattr(task, name, value)
  return lines.make_program(task)


def _step(made, batch):
  return made.train_step(made.init_state(batch), batch)


def test_the_sum_of_losses_is_minimised():
  """A clu metric may be one of them; both are the same mean square here."""
  batch = lines.rows(0)
  _, w, b = lines.losses(1, w=np.full(lines.DIMS, 0.5), b=0.0)
  both = _lines_program(
    loss_aggregator=base_metrics.MultiLossAggregator.config(
      loss_keys=['loss', 'mean_square'], loss_weights=[0.25, 0.75]
    )
  )
  state, outputs = _step(both, batch)
  np.testing.assert_allclose(state.mdl_vars[PARAMS]['w'], w, rtol=1e-5)
  np.testing.assert_allclose(state.mdl_vars[PARAMS]['b'], b, rtol=1e-5)
  np.testing.assert_allclose(outputs['total_loss'], outputs['loss'], rtol=1e-6)


def test_a_metric_with_the_name_of_the_sum():
  class Same(lines.Line):
    def compute_loss(self, predictions, input_batch):
      metrics, out = super().compute_loss(predictions, input_batch)
      return {**metrics, 'total_loss': metrics['loss']}, out

  aggregator = base_metrics.MultiLossAggregator.config(loss_keys=['loss'])
  made = _lines_program(model=Same.config(), loss_aggregator=aggregator)
  with pytest.raises(errors.UserError, match="'total_loss', which is the name"):
    _step(made, lines.rows(0))


def test_an_invalid_step_changes_nothing_but_the_count():
  batch = lines.rows(0)
  made = lines.make_program(lines.task())
  before = made.init_state(batch)
  w = np.asarray(before.mdl_vars[PARAMS]['w'])
  batch.y[0] = np.inf
  state, outputs = made.train_step(before, batch)
  assert outputs['learning/is_valid_step'] == 0
  np.testing.assert_array_equal(state.mdl_vars[PARAMS]['w'], w)
  assert state.mdl_vars[NON_TRAINABLE]['calls'] == 0
  assert state.step == 1
  state, outputs = made.train_step(state, lines.rows(0))
  assert outputs['learning/is_valid_step'] == 1
  assert state.mdl_vars[NON_TRAINABLE]['calls'] == 1


def test_collections_that_may_change():
  task = lines.task(
    model=dict(has_summaries=True), apply_mutable_list=[NON_TRAINABLE]
  )
  _, outputs = _step(lines.make_program(task), lines.rows(0))
  assert (
    'first' not in outputs.scalar_names() and not outputs.non_scalar_summaries
  )


def test_variables_stay_as_they_are_in_evaluations():
  made = lines.make_program(lines.task())
  batch = lines.rows(0)
  state = made.init_state(batch)
  made.eval_step(state.mdl_vars, batch)
  assert state.mdl_vars[NON_TRAINABLE]['calls'] == 0


def test_what_only_summaries_need_is_computed_with_summaries():
  made = lines.make_program(lines.task(model=dict(has_summaries=True)))
  state = made.init_state(lines.rows(0))
  losses = []
  for step, enabled in enumerate([False, True, False, True]):
    w = np.asarray(state.mdl_vars[PARAMS]['w'])
    batch = lines.rows(step * lines.BATCH)
    state, outputs = made.train_step(state, batch, np.bool_(enabled))
    losses.append(float(outputs['loss']))
    assert outputs.has_summaries == enabled
    assert set(outputs.norms) == {'vars/w', 'vars/b', 'learning/var_norm'}
    assert set(outputs.norms) <= set(outputs.scalar_names()) or not enabled
    rms = np.sqrt(np.mean(w**2)) if enabled else 0
    np.testing.assert_allclose(outputs['vars/w'], rms, rtol=1e-5)
    moved = np.asarray(state.mdl_vars[PARAMS]['w']) - w
    applied = float(outputs['learning/applied_grad_norm'])
    assert applied >= np.linalg.norm(moved) * (1 - 1e-4) > 0
    counts = outputs.non_scalar_summaries['all'].value.counts
    assert counts.sum() == (batch.x.size if enabled else 0)
  assert made.train_step._cache_size() == 1
  # The steps themselves are the same.
  want, _, _ = lines.losses(4, w=np.full(lines.DIMS, 0.5), b=0.0)
  np.testing.assert_allclose(losses, want, rtol=1e-5)


class Rowless(lines.Line):
  """Has outputs of the batch in place of per-example outputs."""

  def compute_loss(self, predictions, input_batch):
    metrics, _ = super().compute_loss(predictions, input_batch)
    return metrics, NestedMap(mean=jnp.mean(predictions))


def test_per_example_outputs_have_rows():
  task = lines.task()
  task.model = Rowless.config()
  task.evaluate.write_per_example_out = True
  made = lines.make_program(task)
  batch = lines.rows(0)
  with pytest.raises(
    errors.UserError, match=r"'mean' .* \[\]; expected 4 rows"
  ):
    made.eval_step(made.init_state(batch).mdl_vars, batch)


@pytest.mark.parametrize(
  ('result', 'message'),
  [
    (lambda metrics: metrics, r'Other\.compute_loss returns NestedMap; expect'),
    (
      lambda metrics: (NestedMap(loss=(jnp.ones(4), 1.0)), {}),
      r"the loss 'loss' has the shape \[4\]; expected one number",
    ),
  ],
)
def test_invalid_results_of_compute_loss(result, message):
  class Other(lines.Line):
    def compute_loss(self, predictions, input_batch):
      metrics, _ = super().compute_loss(predictions, input_batch)
      return result(metrics)

  made = _lines_program(model=Other.config())
  batch = lines.rows(0)
  state = made.init_state(batch)
  for step in (
    lambda: made.eval_step(state.mdl_vars, batch),
    lambda: made.train_step(state, batch),
  ):
    with pytest.raises(errors.UserError, match=message):
      step()


class Scanned(lines.Line):
  """Adds `b` to the loss twice, stacked as a scan of modules stacks."""

  def compute_predictions(self, input_batch):
    self.add_aux_loss('extra', jnp.stack([self.theta.b] * 2))
    return super().compute_predictions(input_batch)


def test_auxiliary_losses_that_are_stacked_are_added_up():
  made = _lines_program(model=Scanned.config())
  batch = lines.rows(0)
  _, _, b = lines.losses(1, w=np.full(lines.DIMS, 0.5), b=0.0)
  state, outputs = made.train_step(made.init_state(batch), batch)
  np.testing.assert_allclose(state.mdl_vars[PARAMS]['b'], b - 0.2, rtol=1e-5)
  assert outputs['aux_loss'] == 0


@pytest.mark.parametrize(
  ('pattern', 'calls'), [('non_trainable/calls', 0), ('params/b', 1)]
)
def test_what_is_excluded_by_name(pattern, calls):
  task = lines.task()
  task.train.learner.bprop_variable_exclusion = [pattern]
  made = lines.make_program(task)
  batch = lines.rows(0)
  state, _ = made.train_step(made.init_state(batch), batch)
  assert state.mdl_vars[NON_TRAINABLE]['calls'] == calls
  assert (state.mdl_vars[PARAMS]['b'] == 0) == (pattern == 'params/b')


def test_an_expression_that_excludes_nothing():
  task = lines.task()
  task.train.learner.bprop_variable_exclusion = 'params/c'
  with pytest.raises(errors.UserError, match="'params/c' .*mean: params/[bw]"):
    lines.make_program(task)
