"""A forecaster of patches and its fine-tuning, written for Pax.

It runs on Pax and here: a network of residual blocks and a stack of causal
Transformer layers over patches of time series, with an embedding of the
frequency and outputs for a mean and quantiles. It is fine-tuned whole, with a
frozen stack, or through low-rank factors that a `Theta` adds to the weights.

Shapes: B rows, T times, N patches, D features, H times of the forecast, Q
outputs for each.
"""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROWS, PATCH, TIMES, HORIZON, DIMS, HEADS, LAYERS = 3, 4, 16, 6, 8, 2, 2
QUANTILES = (0.2, 0.5, 0.9)
STEPS = 2
MODES = ('whole', 'frozen', 'factors')


def _modules() -> Any:
  names = """base_layer base_model layers optimizers pax_fiddle py_utils
  schedules layers.activations layers.attentions layers.embedding_softmax
  layers.linears layers.normalizations layers.stochastics layers.transformers"""
  found = {
    name.rpartition('.')[2]: importlib.import_module(f'praxis.{name}')
    for name in names.split()
  }
  return type('Modules', (), found)


@functools.cache
def _residual():
  n = _modules()

  class Residual(n.base_layer.BaseLayer):
    """Two layers beside a linear one: [..., inputs] to [..., outputs]."""

    inputs: int = 0
    outputs: int = 0
    act_tpl: n.pax_fiddle.Config = n.base_layer.template_field(
      n.activations.Swish
    )
    drop_tpl: n.pax_fiddle.Config = n.base_layer.template_field(
      n.stochastics.Dropout
    )

    def setup(self):
      plain = n.pax_fiddle.Config(n.activations.Identity)
      for name, dims_in, dims_out, act in (
        ('first', self.inputs, DIMS, self.act_tpl.clone()),
        ('second', DIMS, self.outputs, plain),
        ('beside', self.inputs, self.outputs, plain.clone()),
      ):
        layer_p = n.pax_fiddle.Config(
          n.linears.FeedForward,
          input_dims=dims_in,
          output_dims=dims_out,
          activation_tpl=act,
        )
        self.create_child(name, layer_p)
      self.create_child('drop', self.drop_tpl.clone().set(keep_prob=1.0))

    def __call__(self, x):
      return self.drop(self.second(self.first(x))) + self.beside(x)

  return Residual


@functools.cache
def _forecaster():
  n = _modules()

  class Forecaster(n.base_layer.BaseLayer):
    """Values and paddings [B, T] to forecasts [B, N, H, Q]."""

    stack_tpl: n.pax_fiddle.Config = n.base_layer.template_field(
      n.transformers.StackedTransformer
    )

    def setup(self):
      stack_p = self.stack_tpl.clone()
      stack_p.model_dims = stack_p.hidden_dims = DIMS
      stack_p.mask_self_attention = True
      self.create_child('stack', stack_p)
      config = n.pax_fiddle.Config
      self.create_child(
        'enter', config(_residual(), inputs=2 * PATCH, outputs=DIMS)
      )
      outputs = HORIZON * (1 + len(QUANTILES))
      self.create_child(
        'leave', config(_residual(), inputs=DIMS, outputs=outputs)
      )
      self.create_child(
        'place', config(n.layers.PositionalEmbedding, embedding_dims=DIMS)
      )
      self.create_child(
        'kind',
        config(n.embedding_softmax.Embedding, num_classes=3, input_dims=DIMS),
      )

    def __call__(self, batch):
      shape = batch.series.shape[0], -1, PATCH
      patches = batch.series.reshape(shape)
      pads = batch.paddings.reshape(shape)
      counts = jnp.maximum((1 - pads[:, -1]).sum(-1), 1.0)
      mean = (patches[:, -1] * (1 - pads[:, -1])).sum(-1) / counts
      scaled = (patches - mean[:, None, None]) * (1 - pads)
      x = self.enter(jnp.concatenate([scaled, pads], axis=-1))
      x += self.place(seq_length=x.shape[1])
      x += self.kind(batch.kinds)
      x = self.stack(x, pads.min(-1))
      y = self.leave(x).reshape(*x.shape[:2], HORIZON, 1 + len(QUANTILES))
      return n.py_utils.NestedMap(
        encoded=x, forecasts=y + mean[:, None, None, None]
      )

    def roll_out(self, batch, count):
      """Forecasts `count` times, each with the means before: [B, count * H]."""
      found, values = [], batch.series
      for _ in range(count):
        pads = jnp.pad(batch.paddings, [(0, 0), (0, values.shape[1] - TIMES)])[
          :, -TIMES:
        ]
        recent = n.py_utils.NestedMap(
          series=values[:, -TIMES:], paddings=pads, kinds=batch.kinds
        )
        found.append(self(recent).forecasts[:, -1])
        values = jnp.concatenate([values, found[-1][..., 0]], axis=-1)
      return jnp.concatenate(found, axis=1)

  return Forecaster


@functools.cache
def _tuned():
  n = _modules()

  class Tuned(n.base_model.BaseModel):
    """A forecaster with the loss of what followed."""

    core_tpl: n.pax_fiddle.Config = n.base_layer.template_field(_forecaster())

    def setup(self):
      self.create_child('core', self.core_tpl)

    def compute_predictions(self, input_batch):
      return self.core(input_batch)

    def compute_loss(self, predictions, input_batch):
      found = predictions.forecasts[:, -1]
      loss = jnp.square(found[..., 0] - input_batch.after).mean()
      for number, quantile in enumerate(QUANTILES, 1):
        error = input_batch.after - found[..., number]
        loss += jnp.maximum(quantile * error, (quantile - 1) * error).mean()
      metrics = {'pinball': (loss, jnp.array(1.0))}
      return metrics, n.py_utils.NestedMap(means=found[..., 0])

  return Tuned


def _with_factors(theta_class: Any, layer: Any) -> Any:
  """Returns a layer class whose `theta.w` has two factors added."""
  n = _modules()
  base_layer = n.base_layer

  class Added(theta_class):
    def __init__(self, module):
      self.module = module

    def __getattr__(self, name):
      value = super().__getattr__(name)
      known = self.module._weight_hparams
      if name != 'w' or not {'up', 'down'} <= set(known):
        return value
      if not self.module.has_variable('params', 'up'):
        return value
      up, down = super().__getattr__('up'), super().__getattr__('down')
      return value + jnp.reshape(up @ down, value.shape)

  class Descriptor:
    def __get__(self, obj, objtype=None):
      return Added(obj)

  class Factored(layer):
    rank: int = 0
    theta = Descriptor()

    def setup(self):
      super().setup()
      sizes = self._weight_hparams['w'].shape
      self.create_variable(
        'up',
        base_layer.WeightHParams(
          [sizes[0], self.rank],
          init=self.params_init,
          mesh_shape=self.mesh_shape,
          tensor_split_dims_mapping=[None, None],
        ),
      )
      self.create_variable(
        'down',
        base_layer.WeightHParams(
          [self.rank, int(np.prod(sizes[1:]))],
          init=base_layer.WeightInit.Constant(0.0),
        ),
      )

  return Factored


@functools.cache
def _factored(name: str) -> Any:
  n = _modules()
  layer = {
    'linear': n.linears.Linear,
    'projection': n.attentions.AttentionProjection,
  }[name]
  return _with_factors(n.base_layer.Theta, layer)


def forecaster_config(mode: str) -> Any:
  """Returns the config of the network."""
  n = _modules()
  config = n.pax_fiddle.Config
  result = config(
    _forecaster(),
    name='forecaster',
    stack_tpl=config(
      n.transformers.StackedTransformer,
      num_heads=HEADS,
      num_layers=LAYERS,
      transformer_layer_params_tpl=config(
        n.transformers.Transformer, ln_tpl=config(n.normalizations.RmsNorm)
      ),
    ),
  )
  if mode == 'factors':
    layer_p = result.stack_tpl.transformer_layer_params_tpl
    linear_p = config(_factored('linear'), rank=2)
    linear_p.copy_fields_from(layer_p.tr_fflayer_tpl.fflayer_tpl.linear_tpl)
    layer_p.tr_fflayer_tpl.fflayer_tpl.linear_tpl = linear_p
    projection_p = config(_factored('projection'), rank=2)
    projection_p.copy_fields_from(layer_p.tr_atten_tpl.proj_tpl)
    layer_p.tr_atten_tpl.proj_tpl = projection_p
  return result


def task(mode: str) -> Any:
  """Returns the task, made without a config, as a script makes it."""
  n = _modules()
  learners = importlib.import_module('paxml.learners')
  tasks_lib = importlib.import_module('paxml.tasks_lib')
  config = n.pax_fiddle.Config
  fields = {
    'whole': {},
    'frozen': {'bprop_variable_exclusion': ['.*/stack/.*']},
    'factors': {'bprop_variable_inclusion': [r'^.*/(up|down)$']},
  }[mode]

  @n.pax_fiddle.auto_config
  def learner() -> learners.Learner:
    return config(
      learners.Learner,
      name='learner',
      loss_name='pinball',
      optimizer=n.optimizers.Adam(
        epsilon=1e-7,
        clip_threshold=1e2,
        learning_rate=0.1,
        lr_schedule=config(
          n.schedules.Cosine, initial_value=1.0, final_value=0.1, total_steps=9
        ),
        ema_decay=0.9,
      ),
      **fields,
    )

  made = tasks_lib.SingleTask(
    name='tuning',
    model=config(_tuned(), name='tuned', core_tpl=forecaster_config(mode)),
    train=tasks_lib.SingleTask.Train(learner=learner()),
  )
  made.model.ici_mesh_shape = [1, 1, 1]
  made.model.mesh_axis_names = ['replica', 'data', 'mdl']
  return made


def batch() -> Any:
  """Returns a batch."""
  random = np.random.default_rng(3)
  values = np.cumsum(random.normal(size=[ROWS, TIMES + HORIZON]), axis=1)
  paddings = np.zeros([ROWS, TIMES])
  paddings[1, :6], paddings[2, :9] = 1, 1
  return _modules().py_utils.NestedMap(
    series=jnp.asarray(values[:, :TIMES], jnp.float32),
    paddings=jnp.asarray(paddings, jnp.float32),
    kinds=jnp.asarray([[0], [1], [2]], jnp.int32),
    after=jnp.asarray(values[:, TIMES:], jnp.float32),
  )


def weights(variables: Any) -> Any:
  """Returns the same numbers for the same shapes, whatever drew them."""
  random = np.random.default_rng(5)
  return jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape) * 0.3, x.dtype),
    variables,
  )


def named(tree: Any) -> dict[str, np.ndarray]:
  """Returns the arrays of nested dicts by path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    '/'.join(str(key.key) for key in path): np.asarray(leaf)
    for path, leaf in leaves
  }


def forecasts() -> dict[str, np.ndarray]:
  """Returns outputs of the network, of pmap over one device."""
  n = _modules()
  base_layer = n.base_layer
  layer = n.pax_fiddle.instantiate(forecaster_config('whole'))
  inputs = batch()
  metadata = layer.abstract_init_with_metadata(inputs, do_eval=True)
  tasks_lib = importlib.import_module('paxml.tasks_lib')
  shapes = tasks_lib.create_state_unpadded_shapes(
    metadata, discard_opt_states=True, learners=None
  )
  variables = weights(shapes.mdl_vars)
  rngs = {
    base_layer.PARAMS: jax.random.PRNGKey(1),
    base_layer.RANDOM: jax.random.PRNGKey(2),
  }
  outputs = jax.pmap(
    lambda batch: {
      **layer.apply(variables, batch, rngs=rngs),
      'rolled': layer.apply(
        variables, batch, count=2, rngs=rngs, method=layer.roll_out
      ),
    },
    axis_name='batch',
    axis_size=1,
    devices=jax.devices()[:1],
  )
  context = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=context):
    found = outputs(jax.tree.map(lambda x: x[None], inputs))
  return {name: np.asarray(x[0]) for name, x in found.items()}


def steps(mode: str) -> tuple[dict[str, np.ndarray], Any]:
  """Returns numbers of fine-tuning, and the state after it.

  Args:
    mode: which weights are trained; see `MODES`.
  """
  trainer_lib = importlib.import_module('paxml.trainer_lib')
  jax_task, inputs = task(mode), batch()
  key = jax.random.PRNGKey(1)
  states, _ = trainer_lib.initialize_model_state(jax_task, key, inputs)
  params = weights(states.mdl_vars['params']['core'])
  states.mdl_vars['params']['core'] = params
  # With these optimizer states begin at the initial weights, here as in Pax.
  train = jax.pmap(
    lambda s, k, b: trainer_lib.train_step_single_learner(jax_task, s, k, b),
    axis_name='batch',
  )
  evaluate = jax.pmap(
    lambda s, k, b: trainer_lib.eval_step_single_learner(
      jax_task, s.to_eval_state(), k, b
    )[1],
    axis_name='batch',
  )
  first = trainer_lib.replicate_model_state(states)
  keys, rows = jax.tree.map(lambda x: x[None], (key, inputs))
  now, found = first, {}
  for number in range(STEPS):
    now, outputs = train(now, keys, rows)
    found[f'loss{number}'] = np.asarray(outputs.loss[0])
  evaluated = evaluate(now, keys, rows)
  found['eval'] = np.asarray(evaluated.loss[0])
  found['means'] = np.asarray(evaluated.per_example_out['means'][0])
  py_utils = importlib.import_module('praxis.py_utils')
  last = py_utils.maybe_unreplicate_for_fully_replicated(now)
  moved = jax.tree.map(
    lambda new, old: np.reshape(new, old.shape) - np.asarray(old),
    last.mdl_vars['params']['core'],
    params,
  )
  kept = {p: x for p, x in named(moved).items() if np.any(x)}
  return found | {f'moved/{path}': x for path, x in kept.items()}, last


def gradients(mode: str) -> dict[str, np.ndarray]:
  """Returns the gradients of the loss for all weights, by path."""
  trainer_lib = importlib.import_module('paxml.trainer_lib')
  base_layer = _modules().base_layer
  jax_task, inputs = task(mode), batch()
  states, _ = trainer_lib.initialize_model_state(
    jax_task, jax.random.PRNGKey(1), inputs
  )
  params = {'core': weights(states.mdl_vars['params']['core'])}

  def loss(weights_now):
    context = base_layer.JaxContext.HParams(do_eval=False)
    with base_layer.JaxContext.new_context(hparams=context):
      metrics, _ = jax_task.model.apply({'params': weights_now}, inputs)
    return metrics['pinball'][0]

  return named(jax.jit(jax.grad(loss))(params)['core'])
