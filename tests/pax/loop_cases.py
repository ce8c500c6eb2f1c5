"""A training loop of one's own, written for Pax; it runs on Pax and here."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np

ROWS, DIMS, STEPS = 4, 3, 3
COMPILERS = ('jit', 'pmap')


@functools.cache
def _model_class():
  base_model = importlib.import_module('praxis.base_model')
  base_layer = importlib.import_module('praxis.base_layer')
  layers = importlib.import_module('praxis.layers')
  pax_fiddle = importlib.import_module('praxis.pax_fiddle')
  py_utils = importlib.import_module('praxis.py_utils')

  class Regression(base_model.BaseModel):
    """A linear layer after batch normalization."""

    norm_tpl: pax_fiddle.Config = pax_fiddle.template_field(layers.BatchNorm)
    linear_tpl: pax_fiddle.Config = pax_fiddle.template_field(layers.Linear)

    def setup(self):
      self.create_child('norm', self.norm_tpl.clone().set(dim=DIMS))
      self.create_child(
        'linear', self.linear_tpl.clone().set(input_dims=DIMS, output_dims=1)
      )
      self.create_variable(
        'calls',
        base_layer.WeightHParams(
          shape=[],
          init=base_layer.WeightInit.Constant(0.0),
          collections=[
            base_layer.WeightHParamsCollection.REQUIRES_SUM_SYNC,
          ],
        ),
        trainable=False,
      )

    def compute_predictions(self, input_batch):
      if not self.do_eval:
        self.update_var('calls', self.get_var('calls') + 1)
      return self.linear(self.norm(input_batch.x))[:, 0]

    def compute_loss(self, predictions, input_batch):
      squares = (input_batch.y - predictions) ** 2
      total = jnp.sum(input_batch.weights)
      loss = jnp.sum(squares * input_batch.weights) / total
      metrics = {'loss': (loss, total), 'last': (squares[-1], jnp.ones([]))}
      return metrics, py_utils.NestedMap(squares=squares)

  return Regression


def task():
  """Returns the task."""
  modules = {
    name: importlib.import_module(name)
    for name in ('paxml.tasks_lib', 'praxis.optimizers', 'praxis.schedules')
  }
  pax_fiddle = importlib.import_module('praxis.pax_fiddle')
  task_p = pax_fiddle.Config(
    modules['paxml.tasks_lib'].SingleTask,
    name='regression',
    model=pax_fiddle.Config(_model_class(), name='model'),
  )
  learner_p = task_p.train.learner
  learner_p.loss_name = 'loss'
  learner_p.optimizer = pax_fiddle.Config(
    modules['praxis.optimizers'].Adam,
    learning_rate=0.1,
    clip_gradient_norm_to_value=0.5,
    ema_decay=0.9,
    lr_schedule=pax_fiddle.Config(modules['praxis.schedules'].Constant),
  )
  return pax_fiddle.instantiate(task_p)


def batch(number: int):
  """Returns a batch."""
  py_utils = importlib.import_module('praxis.py_utils')
  random = np.random.default_rng(number)
  x = random.normal(size=[ROWS, DIMS]).astype(np.float32)
  return py_utils.NestedMap(
    x=jnp.asarray(x),
    y=jnp.asarray(x.sum(1) + 1),
    weights=jnp.array([1.0, 1.0, 0.5, 0.0]),
  )


def _outputs(name: str, outputs) -> dict[str, np.ndarray]:
  found = {'loss': outputs.loss, **outputs.per_example_out}
  for key, (value, weight) in outputs.weighted_scalars.items():
    found |= {f'{key}.value': value, f'{key}.weight': weight}
  return {f'{name}/{k}': np.asarray(v) for k, v in found.items()}


def _variables(name: str, states) -> dict[str, np.ndarray]:
  leaves = jax.tree_util.tree_leaves_with_path(states.mdl_vars)
  return {
    f'{name}/' + '/'.join(str(key.key) for key in path): np.asarray(leaf)
    for path, leaf in leaves
  } | {f'{name}/step': np.asarray(states.step)}


def results(compiler: str) -> dict[str, np.ndarray]:
  """Returns the numbers of a loop, by step.

  Args:
    compiler: `jit`, or `pmap` over one device.
  """
  trainer_lib = importlib.import_module('paxml.trainer_lib')
  jax_task = task()
  key = jax.random.PRNGKey(1)
  states, _ = trainer_lib.initialize_model_state(jax_task, key, batch(0))
  # The first weights are the same, whatever draws them.
  states = states.replace(
    mdl_vars=jax.tree.map(
      lambda x: jnp.linspace(0.5, 1.0, x.size).reshape(x.shape), states.mdl_vars
    )
  )
  train = functools.partial(trainer_lib.train_step_single_learner, jax_task)

  def evaluate(states, key, inputs):
    states = states.to_eval_state()
    _, outputs = trainer_lib.eval_step_single_learner(
      jax_task, states, key, inputs
    )
    return outputs

  inputs = [batch(number) for number in range(STEPS)]
  if compiler == 'pmap':
    train = jax.pmap(train, axis_name='batch')
    evaluate = jax.pmap(evaluate, axis_name='batch')
    states = trainer_lib.replicate_model_state(states)
    key, inputs = jax.tree.map(lambda x: x[None], (key, inputs))
  else:
    train, evaluate = jax.jit(train), jax.jit(evaluate)
  found = {}
  for number, one in enumerate(inputs):
    states, outputs = train(states, key, one)
    found |= _outputs(f'train{number}', outputs)
  found |= _outputs('eval', evaluate(states, key, inputs[0]))
  return found | _variables('vars', states)
