"""The smallest task that has all that learners tell apart, in Lingvo and here.

A table that is looked up (its gradient is sparse in TensorFlow), a layer, and a
second layer that regularisation skips. Shapes: B rows of a batch.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.translate import registry
from adaptors.translate.registry import Translated
from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, base_model, learners
from pax_compat.config import REQUIRED, Config
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import parity

_ROWS, _DIMS, _BATCH = 7, 4, 3
# Of several steps, as in `parity` of one.
TOLERANCE = 2e-5


@functools.cache
def _task_class():
  """Returns the task in Lingvo, which its translator knows by this path."""
  tf = lingvo_runtime.module('lingvo.compat')
  base = lingvo_runtime.module('lingvo.core.base_model')
  layers = lingvo_runtime.module('lingvo.core.layers')

  class TinyTask(base.BaseTask):
    """Looks up rows, and puts them through two layers."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('emb', layers.EmbeddingLayer.Params(), 'The table.')
      p.Define('first', layers.ProjectionLayer.Params(), 'A layer.')
      p.Define('second', layers.ProjectionLayer.Params(), 'Another.')
      p.emb.Set(vocab_size=_ROWS, embedding_dim=_DIMS, max_num_shards=1)
      p.first.Set(input_dim=_DIMS, output_dim=_DIMS)
      p.second.Set(input_dim=_DIMS, output_dim=2, skip_lp_regularization=True)
      for layer in (p.first, p.second):
        layer.Set(activation='TANH', batch_norm=False, has_bias=True)
      return p

    def __init__(self, params):
      super().__init__(params)
      for name in ('emb', 'first', 'second'):
        self.CreateChild(name, self.params.Get(name))

    def ComputePredictions(self, theta, batch):
      x = self.emb.EmbLookup(theta.emb, batch.ids)
      for name in ('first', 'second'):
        x = self.children[name].FProp(theta[name], x)
      return x

    def ComputeLoss(self, theta, predictions, batch):
      errors = tf.square(predictions - batch.targets)
      loss = tf.reduce_mean(errors * batch.scale)
      weight = batch.scale[0, 0]
      return {'loss': (loss, weight), 'twice': (2 * loss, 1.0)}, {}

  registry.translates(f'{__name__}._task_class.<locals>.TinyTask')(_translate)
  return TinyTask


class TinyModel(base_model.BaseModel):
  """The same here.

  Attributes:
    emb_tpl: the table.
    first_tpl: a layer.
    second_tpl: another.
  """

  emb_tpl: Config = REQUIRED
  first_tpl: Config = REQUIRED
  second_tpl: Config = REQUIRED

  def setup(self):
    for name in ('emb', 'first', 'second'):
      self.create_child(name, getattr(self, f'{name}_tpl'))

  def compute_predictions(self, input_batch):
    return self.second(self.first(self.emb(input_batch.ids)))

  def compute_loss(self, predictions, input_batch):
    errors = jnp.square(predictions - input_batch.targets)
    loss = jnp.mean(errors * input_batch.scale)
    weight = input_batch.scale[0, 0]
    return {'loss': (loss, weight), 'twice': (2 * loss, 1.0)}, {}


def _translate(view):
  parts = {
    name: registry.translate(view.child(name))
    for name in ('emb', 'first', 'second')
  }
  if None in parts.values():
    return None
  config = TinyModel.config(
    **{f'{name}_tpl': part.config for name, part in parts.items()},
  )
  maps = [part.variables.under(name, name) for name, part in parts.items()]
  return Translated(config, sum(maps[1:], maps[0]))


def params(**train):
  """Returns Params of the task.

  Args:
    **train: fields of its `train`. By default gradients are as they are, and
      the learning rate is 0.1 at every step.
  """
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  inputs = lingvo_runtime.module('lingvo.core.base_input_generator')
  p = _task_class().Params().Set(name='tiny')
  p.input = inputs.BaseSequenceInputGenerator.Params().Set(
    tokenizer=tokenizers.AsciiTokenizer.Params()
  )
  p.train.Set(learning_rate=0.1, optimizer=optimizer('SGD'))
  p.train.lr_schedule = schedule('Constant')
  p.train.Set(**train)
  return p


def optimizer(name: str, **fields):
  """Returns Params of an optimizer of Lingvo's."""
  module = lingvo_runtime.module('lingvo.core.optimizer')
  return getattr(module, name).Params().Set(**fields)


def schedule(name: str, **fields):
  """Returns Params of a schedule of Lingvo's."""
  module = lingvo_runtime.module('lingvo.core.schedule')
  return getattr(module, name).Params().Set(**fields)


def learner(**fields):
  """Returns Params of a learner of Lingvo's, else as `params` are."""
  module = lingvo_runtime.module('lingvo.core.learner')
  made = module.Learner.Params().Set(
    name='loss', learning_rate=0.1, optimizer=optimizer('SGD')
  )
  made.lr_schedule = schedule('Constant')
  return made.Set(**fields)


def translate(task_params):
  """Returns the translated task."""
  return task_translation.translate_task(task_params, 'tiny')


def batches(scales=(1.0, 3.0, 0.5, 2.0)) -> list[NestedMap]:
  """Returns a batch for each factor of the loss, which is its weight as well.

  Rows come more than once.
  """
  rng = np.random.default_rng(3)
  return [
    NestedMap(
      ids=rng.integers(0, 4, [_BATCH]).astype(np.int32),
      targets=rng.normal(size=[_BATCH, 2]).astype(np.float32),
      scale=np.full([_BATCH, 1], scale, np.float32),
    )
    for scale in scales
  ]


@dataclasses.dataclass(frozen=True)
class Run:
  """What a few steps gave, in Lingvo or here.

  Attributes:
    weights: after each step, by theta path; before all in front.
    averages: the moving averages of the weights, likewise; empty without.
    losses: of each step.
    rates: the learning rate of each step, where there is one for all.
    norms: of the gradients of each step, before clipping, where it is metrics.
  """

  weights: list[dict[str, np.ndarray]]
  averages: list[dict[str, np.ndarray]]
  losses: list[float]
  rates: list[float]
  norms: list[float]


def run_lingvo(task_params, data) -> Run:
  """Trains the task in Lingvo, a step on each batch."""
  run = Run([], [], [], [], [])
  with fed_task.build(task_params, data[0], optimized=False) as made:
    task = made.task
    variables = made.variables
    averages = {}
    if task.ema:
      averages = {k: task.ema.average(v) for k, v in variables.items()}
    metrics = {k: value for k, (value, _) in task.eval_metrics.items()}
    asked = [
      (run.losses, task.loss),
      (run.rates, metrics.get('learning_rate/loss')),
      (run.norms, metrics.get('grad_norm/all/loss')),
    ]
    asked = [(into, tensor) for into, tensor in asked if tensor is not None]
    made.start()
    run.weights.append(made.session.run(variables))
    for batch in data:
      values, _ = made.session.run(
        [[tensor for _, tensor in asked], task.train_op], made.feed_dict(batch)
      )
      for (into, _), value in zip(asked, values, strict=True):
        into.append(float(value))
      run.weights.append(made.session.run(variables))
      run.averages.append(made.session.run(averages))
  return run


def start(task_params, batch, first, translated=None):
  """Returns a task's translation, its program, and a first state.

  Args:
    task_params: of Lingvo.
    batch: of which only the shapes matter.
    first: the initial weights by theta path; untrained weights are 0.
    translated: the task as it is translated; None to translate it.
  """
  translated = translated or translate(task_params)
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  weights = jax.tree.map(jnp.asarray, translated.variables.to_jax(first))
  assert jax.tree.map(jnp.shape, weights) == jax.tree.map(
    jnp.shape, made.abstract_state.mdl_vars[base_layer.PARAMS]
  )
  copies = jax.tree.map(jnp.copy, weights)  # The state is donated.
  state = program.TrainState(
    step=jnp.zeros([], jnp.int32),
    mdl_vars={**_zeros(made), base_layer.PARAMS: weights},
    opt_state=made.learner.init(copies, weight_metas=made.weight_metas),
  )
  # Placed as a step leaves it, so that the first one is not compiled by itself.
  state = jax.tree.map(
    lambda x, like: jax.device_put(x, like.sharding),
    state,
    made.abstract_state,
  )
  return translated, made, state


def _zeros(made) -> dict:
  """Returns zeros for the variables that are not trained."""
  return jax.tree.map(
    lambda s: jnp.zeros(s.shape, s.dtype),
    {
      collection: variables
      for collection, variables in made.abstract_state.mdl_vars.items()
      if collection != base_layer.PARAMS
    },
  )


def run_ours(task_params, data, first, translated=None) -> Run:
  """Trains the translated task, a step on each batch.

  Args:
    task_params: of Lingvo.
    data: the batches.
    first: the initial weights, by theta path.
    translated: see `start`.
  """
  translated, made, state = start(task_params, data[0], first, translated)

  def theta(tree):
    return translated.variables.to_lingvo(learners.by_path(tree))

  run = Run([first], [], [], [], [])
  for batch in data:
    state, outputs = made.train_step(state, batch)
    run.weights.append(theta(state.mdl_vars[base_layer.PARAMS]))
    if made.learner.has_ema:
      run.averages.append(
        theta(made.eval_vars(state, use_ema=True)[base_layer.PARAMS])
      )
    run.losses.append(float(outputs['loss']))
    for into, name in (
      (run.rates, 'learning/lr'),
      (run.norms, 'learning/raw_grad_norm'),
    ):
      if name in outputs.scalar_names():
        into.append(float(outputs[name]))
  return run


def check(
  task_params, data=None, *, loss_tolerance=None, translated=None
) -> Run:
  """Holds some steps of a translated task against Lingvo's.

  Args:
    task_params: of Lingvo.
    data: the batches; None for those of `batches()`.
    loss_tolerance: if given, only losses and rates are compared, losses to this
      relative difference: for many steps, over which weights drift apart.
    translated: see `start`.

  Returns:
    Lingvo's run.
  """
  data = batches() if data is None else data
  theirs = run_lingvo(task_params, data)
  ours = run_ours(task_params, data, theirs.weights[0], translated)
  for field, tolerance in (
    ('losses', loss_tolerance or TOLERANCE),
    ('rates', TOLERANCE),
    *([] if loss_tolerance else [('norms', TOLERANCE)]),
  ):
    found, wanted = getattr(ours, field), getattr(theirs, field)
    if found and wanted:
      np.testing.assert_allclose(found, wanted, rtol=tolerance, err_msg=field)
  if not loss_tolerance:
    for field in ('weights', 'averages'):
      _check_arrays(field, getattr(ours, field), getattr(theirs, field))
  return theirs


def _check_arrays(field: str, found, wanted):
  """Fails where arrays by path differ after any step."""
  # Ours does not tell averages of weights where there are none.
  assert len(found) == len(wanted) or not any(wanted)
  for step, (mine, want) in enumerate(zip(found, wanted, strict=False)):
    assert set(want) <= set(mine)
    for path, value in want.items():
      what = f'{field} after step {step}: {path}'
      parity.assert_close(mine[path], value, TOLERANCE, what)


def moved(run: Run) -> dict[str, bool]:
  """Returns which weights of a run are not what they were, by theta path."""
  first, last = run.weights[0], run.weights[-1]
  return {path: bool(np.any(last[path] != first[path])) for path in first}
