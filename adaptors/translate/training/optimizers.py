"""Translators of Lingvo's optimizers: Params to the config of ours.

The configs have neither learning rate nor schedule: a learner sets both.
"""

import dataclasses
import re

import optax

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.training.schedules import layer_fields
from adaptors.translate.view import ParamsView, short
from pax_compat import config as config_lib
from pax_compat import optimizers
from pax_compat.config import Config


def optimizer_fields(view: ParamsView):
  """Reads what all optimizers have."""
  layer_fields(view)
  view.ignore(
    "it concerns TensorFlow's graphs only",
    'add_summary_in_apply',
    'clear_variable_scope',
  )
  view.require('use_bf16_gradients_ar', False)


@translates('lingvo.core.optimizer.SGD')
def sgd(view: ParamsView) -> Config:
  """`SGD`."""
  optimizer_fields(view)
  return optimizers.Sgd.config()


@translates('lingvo.core.optimizer.Momentum')
def momentum(view: ParamsView) -> Config:
  """`Momentum`."""
  optimizer_fields(view)
  return optimizers.Sgd.config(
    momentum=view.get('alpha'), nesterov=view.get('use_nesterov')
  )


@translates('lingvo.core.optimizer.RMSProp')
def rms_prop(view: ParamsView) -> Config:
  """`RMSProp`."""
  optimizer_fields(view)
  return optimizers.RmsProp.config(
    decay=view.get('decay'),
    momentum=view.get('momentum'),
    epsilon=view.get('epsilon'),
  )


@translates('lingvo.core.optimizer.Adagrad')
def adagrad(view: ParamsView) -> Config:
  """`Adagrad`, which adds no epsilon."""
  optimizer_fields(view)
  return optimizers.Adagrad.config(
    initial_accumulator_value=view.get('initial_accumulator_value'),
    epsilon=0.0,
  )


@translates('lingvo.core.optimizer.AdaDelta')
def ada_delta(view: ParamsView) -> Config:
  """`AdaDelta`, which is Optax's."""
  optimizer_fields(view)
  return optimizers.OptaxOptimizer.config(
    grad_tx=Config(
      optax.scale_by_adadelta, rho=view.get('decay'), eps=view.get('epsilon')
    ),
    scale_by_learning_rate=True,
  )


@translates('lingvo.core.optimizer.Adam')
@translates('lingvo.core.optimizer.AdamV2')
def adam(view: ParamsView) -> Config:
  """`Adam` and `AdamV2`, both with TensorFlow's place for epsilon."""
  optimizer_fields(view)
  return optimizers.Adam.config(
    beta1=view.get('beta1'),
    beta2=view.get('beta2'),
    epsilon=view.get('epsilon'),
    epsilon_hat=True,
    clip_threshold=0.0,
  )


@translates('lingvo.core.optimizer.XLAShardingAdafactor')
def adafactor(view: ParamsView) -> Config:
  """`XLAShardingAdafactor`."""
  optimizer_fields(view)
  view.require('cond_is_finite', False)
  power = view.get('decay_exponent_pow')
  offset, beta2 = view.get('decay_exponent_offset'), view.get('beta2')
  decay = dict(decay_method='adam', decay_adam=beta2)
  if power:
    decay = dict(decay_method='pow', decay_pow=power, decay_offset=offset)
  return optimizers.ShardedAdafactor.config(
    beta1=view.get('beta1'),
    multiply_by_parameter_scale=view.get('multiply_by_parameter_scale'),
    clip_threshold=view.get('clipping_threshold'),
    factored=view.get('factored'),
    min_dim_size_to_factor=view.get('min_dim_size_to_factor'),
    sort_factored_second_moment_dims=True,
    quantized_dtype='float32',
    **decay,
  )


@translates('lingvo.core.optimizer.XLAShardingAdafactorAccuGrad')
def adafactor_of_micro_batches(view: ParamsView) -> Config:
  """`XLAShardingAdafactorAccuGrad`."""
  return _of_micro_batches(view, adafactor(view))


@translates('lingvo.tasks.lm.params.synthetic_packed_input.ShardedAdam')
def sharded_adam(view: ParamsView) -> Config:
  """`ShardedAdam`: states are always sharded like their weights here."""
  return _of_micro_batches(view, adam(view))


def _of_micro_batches(view: ParamsView, config: Config) -> Config:
  """Returns an optimizer that updates once in `num_micro_batches` batches."""
  count = view.get('num_micro_batches')
  if count <= 1:
    return config
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=config, num_sub_batches=count, collects_means=True
  )


@translates('lingvo.core.optimizer.Accumulator')
def accumulator(view: ParamsView) -> Config | None:
  """`Accumulator`."""
  count = view.get('accum_steps')
  config = _accumulated(view, leaves_out_steps=count > 1)
  if config is None or count <= 1:
    return config
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=config,
    num_sub_batches=count,
    schedule_counts_sub_batches=True,
  )


@translates('lingvo.core.optimizer.DynamicAccumulator')
def dynamic_accumulator(view: ParamsView) -> Config | None:
  """`DynamicAccumulator`, whose schedule goes by its updates."""
  config = _accumulated(view)
  weight = view.get('min_accum_weight')
  if not isinstance(weight, int | float) or weight <= 0:
    view.issue('min_accum_weight', f'{weight} is not a positive number')
    return None
  if config is None:
    return None
  return optimizers.WeightedAccumulator.config(
    optimizer_tpl=config, min_weight=float(weight)
  )


def _accumulated(
  view: ParamsView, *, leaves_out_steps: bool = True
) -> Config | None:
  """Returns the optimizer that an accumulator wraps, if it can be wrapped."""
  optimizer_fields(view)
  config = registry.translate(view.child('optimizer_tpl'))
  if config is None:
    return None
  if isinstance(config, Composite):
    view.issue('optimizer_tpl', 'several optimizers cannot be wrapped by one')
    return None
  if leaves_out_steps and _counts_steps(config):
    view.issue(
      'optimizer_tpl',
      f'{view.params.optimizer_tpl.cls.__name__} counts the steps that'
      f' {view.params.cls.__name__} leaves out, which is not translated',
    )
    return None
  return config


@translates('lingvo.core.optimizer.AdaGraft')
def ada_graft(view: ParamsView) -> Config | None:
  """`AdaGraft`, whose Params hold optimizers that are instantiated."""
  optimizer_fields(view)
  view.ignore('it is for summaries only', 'diagnostic')
  if view.get('use_global_norm'):
    view.issue(
      'use_global_norm',
      'with it no weight ever moves in Lingvo as a graph, and as a function'
      ' TensorFlow refuses to create its variables in each step',
    )
  magnitude = _grafted(view, 'magnitude_optimizer')
  direction = _grafted(view, 'direction_optimizer')
  rate = view.get('direction_optimizer_lr')
  if magnitude is None or direction is None:
    return None
  if rate is not None:
    direction.set(learning_rate=float(rate))
  return optimizers.Graft.config(
    magnitude_tpl=magnitude, direction_tpl=direction
  )


def _grafted(view: ParamsView, name: str) -> Config | None:
  """Returns one of the optimizers of an `AdaGraft`."""
  made = view.get(name)
  params = getattr(made, 'params', None)
  if 'GetOptimizer' not in dir(type(made)) or params is None:
    view.issue(
      name, f'{short(made)} is no optimizer; Lingvo takes an instantiated one'
    )
    return None
  config = registry.translate(
    ParamsView(params.Copy(), f'{view.path}.{name}', view.report)
  )
  if config is None:
    return None
  kinds = (optimizers.Accumulator, optimizers.Shampoo)
  if isinstance(config, Composite) or issubclass(config.cls, kinds):
    view.issue(name, f'{params.cls.__name__} does not work within AdaGraft')
    return None
  return config


@translates('lingvo.core.optimizer.DistributedShampoo')
def distributed_shampoo(view: ParamsView) -> Config:
  """`DistributedShampoo`; a learner says how often it computes roots.

  Whatever its Params say, Lingvo gives it some defaults of its own.
  """
  optimizer_fields(view)
  max_dim = view.get('max_any_dim')
  if max_dim > _SHAMPOO_LARGEST:
    view.issue(
      'max_any_dim',
      f'{max_dim} is above {_SHAMPOO_LARGEST}, from which on Lingvo takes'
      ' weights apart, which is not translated',
    )
  view.ignore(
    f'no dimension is above {_SHAMPOO_LARGEST}, from which on Lingvo takes'
    ' weights apart whatever this says',
    'block_size',
    'block_partition_threshold_size',
  )
  view.ignore(
    f'Lingvo does not read it, but takes {_SHAMPOO_MATRICES}',
    'fallback_to_diagonal_dim',
  )
  return optimizers.Shampoo.config(
    momentum=view.get('momentum'),
    initial_accumulator_value=view.get('initial_accumulator_value'),
    second_moment_decay=view.get('second_moment_averaging'),
    statistics_interval_steps=max(
      1, view.get('statistics_computation_frequency')
    ),
    start_step=view.get('start_preconditioning_steps'),
    epsilon=view.get('matrix_epsilon'),
    max_dim=max_dim,
    max_matrix_dim=_SHAMPOO_MATRICES,
  )


# Defaults of TensorFlow's optimizer that Lingvo's does not set.
_SHAMPOO_MATRICES = 4096
_SHAMPOO_LARGEST = 1_000_000


def all_optimizers(config: Config) -> list[Config]:
  """Returns an optimizer, those that it wraps, and so on."""
  inner = [
    getattr(config, name)
    for name in ('optimizer_tpl', 'magnitude_tpl', 'direction_tpl')
    if config_lib.is_set(config, name)
  ]
  return [config, *(found for one in inner for found in all_optimizers(one))]


def wrapped(config: Config) -> list[Config]:
  """Returns an optimizer, the one that it wraps, and so on."""
  found = [config]
  while config_lib.is_set(found[-1], 'optimizer_tpl'):
    found.append(found[-1].optimizer_tpl)
  return found


def has(config: Config, *classes: type) -> bool:
  """Whether an optimizer is of one of some classes, or wraps one that is."""
  found = (one.cls for one in all_optimizers(config))
  return any(issubclass(cls, classes) for cls in found)


def accumulates(config: Config) -> bool:
  """Whether an optimizer collects the gradients of several batches."""
  return has(config, optimizers.Accumulator)


def is_adafactor(config: Config) -> bool:
  """Whether an optimizer is Adafactor, or wraps it."""
  return has(config, optimizers.ShardedAdafactor)


def goes_by_shape(config: Config) -> bool:
  """Whether an optimizer takes a weight apart by its shape."""
  return has(config, optimizers.ShardedAdafactor, optimizers.Shampoo)


def goes_by_whole(config: Config) -> bool:
  """Whether what an optimizer does with a weight depends on all of it."""
  return goes_by_shape(config) or has(config, optimizers.Graft)


def leaves_alone(config: Config) -> str:
  """Returns what of a looked-up table TensorFlow's optimizer leaves alone.

  Only where zeros as gradients would make a difference, and where the optimizer
  sees that the gradients are sparse. It is '' for nothing.
  """
  if accumulates(config):
    return ''
  if has(config, optimizers.Graft, optimizers.Shampoo):
    return 'all rows'
  last = wrapped(config)[-1]
  cls = last.cls
  has_momentum = cls is optimizers.Sgd and last.momentum is not None
  if has_momentum or cls in (optimizers.RmsProp, optimizers.OptaxOptimizer):
    return 'the rows that a batch does not look up'
  return ''


def _counts_steps(config: Config) -> bool:
  """Whether an optimizer in Lingvo goes by the global step by itself."""
  return has(
    config,
    optimizers.Accumulator,
    optimizers.ShardedAdafactor,
    optimizers.Shampoo,
  )


@dataclasses.dataclass(frozen=True)
class Composite:
  """Several optimizers, each with its own weights and learning rate.

  Attributes:
    default: config of the optimizer of all other weights.
    others: by regular expression, which is matched at the beginning of the
      names of Lingvo's variables, the config of an optimizer.
  """

  default: Config
  others: dict[str, Config]


@translates('lingvo.core.optimizer.CompositeOptimizer')
def composite(view: ParamsView) -> Composite | None:
  """`CompositeOptimizer`, whose rates are constant whatever its learner's."""
  optimizer_fields(view)
  found = {}
  for pattern, (params, rate) in (view.get('optimizer_map') or {}).items():
    name = f'optimizer_map[{pattern!r}]'
    optimizer = registry.translate(view.adopt(params, name))
    if optimizer is None:
      continue
    if isinstance(optimizer, Composite) or has(
      optimizer, optimizers.Accumulator, optimizers.Shampoo
    ):
      view.issue(name, f'{params.cls.__name__} is not translated here')
    elif _is_pattern(pattern):
      found[pattern] = optimizer.set(learning_rate=float(rate))
    else:
      view.issue(name, 'it is not a regular expression')
  if _DEFAULT not in found:
    view.issue('optimizer_map', f'it has no usable optimizer {_DEFAULT!r}')
    return None
  return Composite(found.pop(_DEFAULT), found)


_DEFAULT = 'default_optimizer'


def _is_pattern(text: str) -> bool:
  try:
    re.compile(text)
  except re.error:
    return False
  return True
