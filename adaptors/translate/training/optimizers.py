"""Translators of Lingvo's optimizers: Params to the config of ours.

The configs have neither learning rate nor schedule: the learner sets both.
"""

import dataclasses

import optax

from adaptors.equivalents import lingvo_optimizers
from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.training.schedules import layer_fields, same_fields
from adaptors.translate.view import ParamsView, short
from pax_compat import config as config_lib
from pax_compat import optimizers
from pax_compat.config import Config

_OPTIMIZER = 'lingvo.core.optimizer'


def optimizer_fields(view: ParamsView):
  """Reads the fields that all optimizers have."""
  layer_fields(view)
  view.ignore(
    "it concerns TensorFlow's graphs only",
    'add_summary_in_apply',
    'clear_variable_scope',
  )
  view.require('use_bf16_gradients_ar', False)


same_fields(f'{_OPTIMIZER}.SGD', optimizers.Sgd, read=optimizer_fields)
same_fields(
  f'{_OPTIMIZER}.Momentum',
  optimizers.Sgd,
  read=optimizer_fields,
  momentum='alpha',
  nesterov='use_nesterov',
)
same_fields(
  f'{_OPTIMIZER}.RMSProp',
  optimizers.RmsProp,
  'decay',
  'momentum',
  'epsilon',
  read=optimizer_fields,
)


@translates(f'{_OPTIMIZER}.Adagrad')
def adagrad(view: ParamsView) -> Config:
  optimizer_fields(view)
  return optimizers.Adagrad.config(
    initial_accumulator_value=view.get('initial_accumulator_value'),
    epsilon=0.0,
  )


@translates(f'{_OPTIMIZER}.AdaDelta')
def ada_delta(view: ParamsView) -> Config:
  optimizer_fields(view)
  return optimizers.OptaxOptimizer.config(
    grad_tx=Config(
      optax.scale_by_adadelta, rho=view.get('decay'), eps=view.get('epsilon')
    ),
    scale_by_learning_rate=True,
  )


@translates(f'{_OPTIMIZER}.Adam')
@translates(f'{_OPTIMIZER}.AdamV2')
def adam(view: ParamsView) -> Config:
  """Returns Adam with epsilon where TensorFlow adds it."""
  optimizer_fields(view)
  return optimizers.Adam.config(
    beta1=view.get('beta1'),
    beta2=view.get('beta2'),
    epsilon=view.get('epsilon'),
    epsilon_hat=True,
    clip_threshold=0.0,
  )


@translates(f'{_OPTIMIZER}.XLAShardingAdafactor')
def adafactor(view: ParamsView) -> Config:
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


@translates(f'{_OPTIMIZER}.XLAShardingAdafactorAccuGrad')
def adafactor_of_micro_batches(view: ParamsView) -> Config:
  return _of_micro_batches(view, adafactor(view))


@translates('lingvo.tasks.lm.params.synthetic_packed_input.ShardedAdam')
def sharded_adam(view: ParamsView) -> Config:
  """Returns Adam, whose states are always sharded like the weights here."""
  return _of_micro_batches(view, adam(view))


def _of_micro_batches(view: ParamsView, config: Config) -> Config:
  """Returns an optimizer that updates once per `num_micro_batches` batches."""
  count = view.get('num_micro_batches')
  if count <= 1:
    return config
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=config, num_sub_batches=count, collects_means=True
  )


@translates(f'{_OPTIMIZER}.Accumulator')
def accumulator(view: ParamsView) -> Config | None:
  count = view.get('accum_steps')
  config = _accumulated(view, skips_steps=count > 1)
  if config is None or count <= 1:
    return config
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=config,
    num_sub_batches=count,
    schedule_counts_sub_batches=True,
  )


@translates(f'{_OPTIMIZER}.DynamicAccumulator')
def dynamic_accumulator(view: ParamsView) -> Config | None:
  """Returns an accumulator whose schedule counts updates."""
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
  view: ParamsView, *, skips_steps: bool = True
) -> Config | None:
  """Returns the optimizer that an accumulator wraps; None after an issue."""
  optimizer_fields(view)
  config = registry.translate(view.child('optimizer_tpl'))
  if config is None:
    return None
  if isinstance(config, Composite):
    view.issue('optimizer_tpl', 'several optimizers cannot be wrapped by one')
    return None
  if skips_steps and _counts_steps(config):
    view.issue(
      'optimizer_tpl',
      f'{view.params.optimizer_tpl.cls.__name__} counts, or may count, the'
      f' steps that {view.params.cls.__name__} skips, which is not translated',
    )
    return None
  return config


@translates(f'{_OPTIMIZER}.AdaGraft')
def ada_graft(view: ParamsView) -> Config | None:
  """Returns a grafted optimizer; the Params contain optimizer objects."""
  optimizer_fields(view)
  view.ignore('it is for summaries only', 'diagnostic')
  if view.get('use_global_norm'):
    view.issue(
      'use_global_norm',
      'with it Lingvo updates no weight in graph mode, and in function mode'
      ' fails to create variables in each step',
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
  """Returns the config of one of the optimizers of an `AdaGraft`."""
  made = view.get(name)
  params = getattr(made, 'params', None)
  if 'GetOptimizer' not in dir(type(made)) or params is None:
    view.issue(
      name,
      f'{short(made)} is not an optimizer object, which Lingvo expects here',
    )
    return None
  config = registry.translate(
    ParamsView(params.Copy(), f'{view.path}.{name}', view.report)
  )
  if config is None:
    return None
  kinds = (
    optimizers.Accumulator,
    optimizers.Shampoo,
    lingvo_optimizers.ByVariables,
  )
  if isinstance(config, Composite) or issubclass(config.cls, kinds):
    view.issue(name, f'{params.cls.__name__} does not work within AdaGraft')
    return None
  return config


@translates(f'{_OPTIMIZER}.DistributedShampoo')
def distributed_shampoo(view: ParamsView) -> Config:
  """Returns Shampoo; the learner sets how often it computes roots.

  Some defaults of TensorFlow's optimizer cannot be set in Lingvo's Params.
  """
  optimizer_fields(view)
  max_dim = view.get('max_any_dim')
  if max_dim > _SHAMPOO_LARGEST:
    view.issue(
      'max_any_dim',
      f'{max_dim} is above {_SHAMPOO_LARGEST}, from which on Lingvo splits'
      ' weights into blocks, which is not translated',
    )
  view.ignore(
    f'Lingvo splits only dimensions above {_SHAMPOO_LARGEST}, and there are'
    ' none',
    'block_size',
    'block_partition_threshold_size',
  )
  view.ignore(
    f'Lingvo does not read it, and uses {_SHAMPOO_MATRICES}',
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


# Defaults of TensorFlow's optimizer that Lingvo's does not change.
_SHAMPOO_MATRICES = 4096
_SHAMPOO_LARGEST = 1_000_000


def all_optimizers(config: Config) -> list[Config]:
  """Returns an optimizer and all that it wraps, recursively."""
  inner = [
    getattr(config, name)
    for name in ('optimizer_tpl', 'magnitude_tpl', 'direction_tpl')
    if config_lib.is_set(config, name)
  ]
  return [config, *(found for one in inner for found in all_optimizers(one))]


def wrapped(config: Config) -> list[Config]:
  """Returns an optimizer and the chain of those in `optimizer_tpl`."""
  found = [config]
  while config_lib.is_set(found[-1], 'optimizer_tpl'):
    found.append(found[-1].optimizer_tpl)
  return found


def has(config: Config, *classes: type) -> bool:
  """Whether an optimizer, or one that it wraps, is of one of the classes."""
  found = (one.cls for one in all_optimizers(config))
  return any(issubclass(cls, classes) for cls in found)


def accumulates(config: Config) -> bool:
  """Whether an optimizer accumulates the gradients of several batches."""
  return has(config, optimizers.Accumulator)


def is_adafactor(config: Config) -> bool:
  """Whether an optimizer is Adafactor, or wraps it."""
  return has(config, optimizers.ShardedAdafactor)


def goes_by_shape(config: Config) -> bool:
  """Whether an optimizer's update depends on the shape of a weight."""
  return has(
    config,
    optimizers.ShardedAdafactor,
    optimizers.Shampoo,
    lingvo_optimizers.ByVariables,
  )


def goes_by_whole(config: Config) -> bool:
  """Whether an optimizer's update of an element depends on all elements."""
  return goes_by_shape(config) or has(config, optimizers.Graft)


def leaves_alone(config: Config) -> str:
  """Returns which rows of a table TensorFlow's optimizer does not update.

  This concerns sparse gradients, and optimizers that would update a row with a
  gradient of zeros. TensorFlow sums the gradients of a row that is looked up
  several times, and Adam, Adagrad and SGD update all rows.

  Returns:
    See `OnLookedUpRows.leaves_alone`; '' if all rows are updated. For a bridged
    optimizer it may be unknown; see `ByVariables`.
  """
  if accumulates(config):
    return ''
  if has(config, optimizers.Graft, optimizers.Shampoo):
    return lingvo_optimizers.TABLES
  last = wrapped(config)[-1]
  cls = last.cls
  if issubclass(cls, lingvo_optimizers.ByVariables):
    return last.sparse_updates
  has_momentum = cls is optimizers.Sgd and last.momentum is not None
  if has_momentum or cls in (optimizers.RmsProp, optimizers.OptaxOptimizer):
    return lingvo_optimizers.OTHER_ROWS
  return ''


def _counts_steps(config: Config) -> bool:
  """Whether Lingvo's optimizer reads, or may read, the global step."""
  last = wrapped(config)[-1]
  if issubclass(last.cls, lingvo_optimizers.ByVariables) and last.uses_step:
    return True
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
    others: config of an optimizer by regular expression, which is matched at
      the beginning of the names of Lingvo's variables.
  """

  default: Config
  others: dict[str, Config]


@translates(f'{_OPTIMIZER}.CompositeOptimizer')
def composite(view: ParamsView) -> Composite | None:
  """Returns optimizers with constant learning rates."""
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
    elif view.compiled(pattern, name):
      found[pattern] = optimizer.set(learning_rate=float(rate))
  if _DEFAULT not in found:
    view.issue('optimizer_map', f'it has no usable optimizer {_DEFAULT!r}')
    return None
  return Composite(found.pop(_DEFAULT), found)


_DEFAULT = 'default_optimizer'
