"""Tests of bridged layers inside of translated layers.

Shapes: B batch, T time, D dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import layer as bridge_layer
from adaptors.bridge import task as bridge_task
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer, errors, learners
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, ROW_PROBES
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate import tiny_task
from tests.adaptors.translate.builder import builder_example_test
from tests.adaptors.translate.parity import (
  GRADIENT_TOLERANCE,
  OUTPUT_TOLERANCE,
  assert_close,
)

B, T, D = 3, 4, 2
X = np.random.default_rng(1).normal(size=[B, T, D]).astype(np.float32)
IDS = np.array([[0, 4, 4, 1], [2, 2, 2, 2], [3, 1, 0, 4]], np.int32)
COTANGENT = np.random.default_rng(2).normal(size=[B, T, D]).astype(np.float32)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's builder, and custom layers of a user."""
  tf = lingvo_runtime.module('lingvo.compat')
  base = lingvo_runtime.module('lingvo.core.base_layer')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  bn_layers = lingvo_runtime.module('lingvo.core.bn_layers')

  class Scaled(base.BaseLayer):
    """Scales by a weight, normalizes over the batch, and counts calls."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('bn', bn_layers.BatchNormLayer.Params(), 'Normalizes.')
      p.Define('keep_prob', 1.0, 'How much is kept.')
      return p

    def __init__(self, params):
      super().__init__(params)
      self.CreateChild('bn', self.params.bn.Copy().Set(dim=D))

    def _CreateLayerVariables(self):
      super()._CreateLayerVariables()
      weight = py_utils.WeightParams([D], py_utils.WeightInit.Gaussian(1.0))
      count = py_utils.WeightParams([], py_utils.WeightInit.Constant(0.0))
      self.CreateVariable('scale', weight)
      self.CreateVariable('count', count, trainable=False)

    def FProp(self, theta, inputs):
      if not self.do_eval:
        self.vars.count.assign_add(1.0)
      y = self.bn.FProp(theta.bn, inputs.x * theta.scale)
      y = tf.nn.dropout(y, rate=1 - self.params.keep_prob)
      return py_utils.NestedMap(y=y, sizes=[tf.shape(y)[0], None, 'text'])

  class Rows(base.BaseLayer):
    """Looks up rows of a table."""

    def _CreateLayerVariables(self):
      super()._CreateLayerVariables()
      weight = py_utils.WeightParams([5, D], py_utils.WeightInit.Gaussian(1.0))
      self.CreateVariable('table', weight)
      self.CreateVariable('unused', weight)

    def FProp(self, theta, ids, x):
      return tf.gather(theta.table, ids) * x, ids

  class Powers(base.BaseLayer):
    """Adds powers."""

    def _CreateLayerVariables(self):
      super()._CreateLayerVariables()
      weight = py_utils.WeightParams([8], py_utils.WeightInit.Gaussian(1.0))
      self.CreateVariable('w', weight)

    def FProp(self, theta, x):
      return x + theta.w * tf.square(x)

  class Modules:
    powers = Powers
    scaled = Scaled
    rows = Rows
    builder = lingvo_runtime.module('lingvo.core.builder').Base.Params()
    builder = builder.Instantiate()

  return Modules


def _translated(params):
  report = Report(bridge_part=bridge_layer.bridge_part)
  translated = registry.translate(ParamsView(params.Copy(), 'layer', report))
  assert not report.issues, list(map(str, report.issues))
  return translated


def _graph(lingvo, **fields):
  """A graph of a Lingvo layer and a custom layer."""
  b = lingvo.builder
  return b._Graph(
    'graph',
    ['i'],
    ['o', 'n'],
    ('i->h', b._Linear('linear', D, D)),
    ('(x=h)->s', lingvo.scaled.Params().Set(name='own', **fields)),
    ('s.y->o', b._Id('id')),
    ('s.sizes->n', b._Id('sizes')),
  )


def _in_lingvo(params, do_eval, *inputs):
  """Returns values before and after, outputs, and gradients by theta path."""
  tf = lingvo_runtime.module('tensorflow')
  rng = np.random.default_rng(0)
  with lingvo_runtime.cluster(do_eval=do_eval):
    layer = params.Instantiate()
    variables = dict(layer.vars.FlattenItems())
    for v in variables.values():
      v.assign(rng.uniform(0.5, 1.0, v.shape).astype(np.float32))
    before = {path: v.numpy() for path, v in variables.items()}
    inputs = list(map(tf.constant, inputs))
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      outputs = layer.FProp(layer.theta, *inputs)
      loss = tf.reduce_sum(outputs[0] * COTANGENT)
    weights = {p: v for p, v in variables.items() if v.trainable}
    floats = [x for x in inputs if x.dtype.is_floating]
    gradients, by_input = tape.gradient(loss, [weights, floats])
  after = {path: v.numpy() for path, v in variables.items()}
  return before, after, outputs, gradients, by_input


def _variables(translated, values):
  """Returns our variables from Lingvo's values, by collection."""
  return {
    collection: translated.variables.only(is_trainable=kind).to_jax(values)
    for collection, kind in ((PARAMS, True), (NON_TRAINABLE, False))
  }


@pytest.mark.parametrize('do_eval', [False, True])
def test_a_users_layer_inside_of_a_graph(lingvo, do_eval):
  params = _graph(lingvo)
  before, after, outputs, gradients, by_input = _in_lingvo(params, do_eval, X)
  translated = _translated(params)
  variables = _variables(translated, before)
  variables[NON_TRAINABLE]['sub_s']['global_step'] = jnp.int32(7)
  layer = translated.config.Instantiate()

  @jax.jit
  def computed(params, x):
    def loss(params, x):
      with base_layer.eval_mode(do_eval):
        (y, sizes), written = layer.apply(
          {**variables, PARAMS: params},
          x,
          rngs={base_layer.RANDOM: jax.random.key(0)},
          mutable=[NON_TRAINABLE],
        )
      assert sizes[1:] == [None, 'text']
      return jnp.sum(y * COTANGENT), (y, sizes[0], written[NON_TRAINABLE])

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)

  (_, (y, size, written)), (by_params, by_x) = computed(variables[PARAMS], X)
  assert_close(y, outputs[0], OUTPUT_TOLERANCE, 'output')
  assert size == B
  assert_close(by_x, by_input[0], GRADIENT_TOLERANCE, 'input')
  by_theta = translated.variables.only(is_trainable=True).to_lingvo(
    learners.by_path(by_params)
  )
  assert set(by_theta) == set(gradients)
  for path, expected in gradients.items():
    assert_close(by_theta[path], expected, GRADIENT_TOLERANCE, path)
  assert written['sub_s'].pop('global_step') == (7 if do_eval else 8)
  kept = translated.variables.only(is_trainable=False)
  for path, value in kept.to_lingvo(learners.by_path(written)).items():
    assert_close(value, after[path], OUTPUT_TOLERANCE, path)


def _bridged(params, *args):
  """Returns a bridged layer, and its initial variables."""
  view = ParamsView(params.Copy(), 'layer', Report())
  layer = bridge_layer.bridge_part(view).config.Instantiate()
  keys = {k: jax.random.key(0) for k in (PARAMS, base_layer.RANDOM)}
  return layer, base_layer.unbox(layer.init_boxed(keys, *args))


def _apply(layer, variables, *args, seed=0):
  return layer.apply(
    variables, *args, rngs={base_layer.RANDOM: jax.random.key(seed)}
  )


def test_row_statistics_of_embedding_tables(lingvo):
  params = lingvo.rows.Params().Set(name='rows')
  layer, variables = _bridged(params, IDS, X)
  assert set(variables[ROW_PROBES]) == {'table', 'unused'}

  def loss(params, probes):
    changed = {**variables, PARAMS: params, ROW_PROBES: probes}
    rows, ids = _apply(layer, changed, IDS, X)
    return jnp.sum(rows * COTANGENT), ids

  (_, ids), (gradients, statistics) = jax.value_and_grad(
    loss, (0, 1), has_aux=True
  )(variables[PARAMS], variables[ROW_PROBES])
  np.testing.assert_array_equal(ids, IDS)
  by_row = np.zeros([5, D], np.float32)
  np.add.at(by_row, IDS, X * COTANGENT)
  np.testing.assert_allclose(gradients['table'], by_row, rtol=1e-5, atol=1e-6)
  counts, sum_squares = statistics['table']
  np.testing.assert_array_equal(counts, np.bincount(IDS.ravel()))
  np.testing.assert_allclose(sum_squares, np.sum((X * COTANGENT) ** 2), 1e-5)
  assert not statistics['unused'].counts.any()


def test_gradients_use_the_same_dropout_mask(lingvo):
  params = lingvo.scaled.Params().Set(name='own', keep_prob=0.5)
  params.bn.Set(gamma_zero_init=True)  # Then the output is beta, or dropped.
  layer, variables = _bridged(params, NestedMap(x=X))
  beta = np.ones_like(variables[PARAMS]['bn']['beta'])
  variables[PARAMS]['bn']['beta'] = beta

  @jax.jit
  def dropped(beta, seed):
    weights = {**variables[PARAMS], 'bn': {'beta': beta, 'gamma': 0 * beta}}
    changed = {**variables, PARAMS: weights}
    return _apply(layer, changed, NestedMap(x=X), seed=seed)['y']

  seeds = [dropped(beta, seed) for seed in (1, 1, 2)]
  assert set(np.unique(seeds)) == {0.0, 2.0}
  np.testing.assert_array_equal(seeds[0], seeds[1])
  assert (seeds[0] != seeds[2]).any()
  by_beta = jax.grad(lambda b: dropped(b, 1).sum())(beta)
  np.testing.assert_array_equal(by_beta, seeds[0].sum([0, 1]))


def test_components_that_cannot_be_built_are_issues(lingvo):
  params = lingvo.scaled.Params().Set(name='own')
  params.bn = lingvo.builder._Id('no_normalization')
  report = Report(bridge_part=bridge_layer.bridge_part)
  b = lingvo.builder
  view = ParamsView(b._Seq('all', b._Id('id'), params), 'layer', report)
  assert registry.translate(view) is None
  (issue,) = report.issues
  assert issue.path == 'layer.sub[1]'
  assert 'cannot be bridged' in issue.message


def test_a_task_of_translated_and_bridged_layers_learns_as_in_lingvo(
  lingvo, caplog
):
  """With repeated layers, whose values are stacked in one variable."""
  caplog.set_level('INFO')
  layers = lingvo_runtime.module('lingvo.core.builder_layers')
  task, b = builder_example_test.built_task('Adam'), lingvo.builder
  body = b._Seq('body', b._Linear('linear', 8, 8), lingvo.powers.Params())
  body.sub[1].name = 'own'
  task.network = layers.RepeatLayer.Params().Set(repeat=2, body=body)
  with pytest.raises(errors.UserError, match=registry.UNKNOWN):
    bridge_task.translate(task, 'built', 'native')
  translated = bridge_task.translate(task, 'built', 'auto')
  assert translated.config.model.cls is builder_example_test.BuiltModel
  assert 'Powers) is bridged: Lingvo computes it' in caplog.text
  batches = [
    NestedMap(x=x, targets=np.sin(3 * x))
    for x in np.random.default_rng(5).normal(size=[3, 2, 5, 8]).astype('f')
  ]
  run = tiny_task.check(task, batches, translated=translated)
  assert all(tiny_task.moved(run).values())
