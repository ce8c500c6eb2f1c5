"""Translators of Lingvo's optimizers: Params to the config of ours.

The configs have neither learning rate nor schedule: a learner sets both.
"""

import dataclasses
import re

import optax

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.schedules import layer_fields
from adaptors.translate.view import ParamsView
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
    optimizer_tpl=config, num_sub_batches=count
  )


@translates('lingvo.core.optimizer.Accumulator')
def accumulator(view: ParamsView) -> Config | None:
  """`Accumulator`."""
  optimizer_fields(view)
  config = registry.translate(view.child('optimizer_tpl'))
  count = view.get('accum_steps')
  if config is None:
    return None
  if isinstance(config, Composite):
    view.issue('optimizer_tpl', 'several optimizers cannot be wrapped by one')
    return None
  if count <= 1:
    return config
  if _counts_steps(config):
    view.issue(
      'optimizer_tpl',
      f'{view.params.optimizer_tpl.cls.__name__} counts the steps that an'
      ' Accumulator leaves out, which is not translated',
    )
    return None
  return optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=config,
    num_sub_batches=count,
    schedule_counts_sub_batches=True,
  )


def wrapped(config: Config) -> list[Config]:
  """Returns an optimizer, what it wraps, and so on."""
  found = [config]
  while 'optimizer_tpl' in found[-1].__arguments__:
    found.append(found[-1].optimizer_tpl)
  return found


def accumulates(config: Config) -> bool:
  """Whether an optimizer collects the gradients of several batches."""
  return any(
    c.__fn_or_cls__ is optimizers.ShardedStaticAccumulator
    for c in wrapped(config)
  )


def is_adafactor(config: Config) -> bool:
  """Whether an optimizer is Adafactor, or wraps it."""
  return wrapped(config)[-1].__fn_or_cls__ is optimizers.ShardedAdafactor


def skips_rows(config: Config) -> bool:
  """Whether TensorFlow's optimizer leaves rows without gradients alone.

  Only where zeros as their gradients would make a difference, and where the
  optimizer sees that the gradients are sparse.
  """
  last = wrapped(config)[-1]
  if accumulates(config):
    return False
  if last.__fn_or_cls__ is optimizers.Sgd:
    return last.momentum is not None
  return last.__fn_or_cls__ in (optimizers.RmsProp, optimizers.OptaxOptimizer)


def _counts_steps(config: Config) -> bool:
  """Whether an optimizer in Lingvo goes by the global step by itself."""
  return accumulates(config) or is_adafactor(config)


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
    if isinstance(optimizer, Composite) or accumulates(optimizer):
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


def _refused(name: str, why: str):
  """Registers that an optimizer is refused."""

  @translates(f'lingvo.core.optimizer.{name}')
  def refuse(view: ParamsView) -> None:
    view.issue('', f'this optimizer is not supported: {why}')

  return refuse


_refused(
  'DynamicAccumulator',
  'batches make an update once their weights add up to some sum; Accumulator'
  ' makes one of a fixed number of batches',
)
_refused('DistributedShampoo', 'there is no Shampoo here')
_refused('AdaGraft', 'there is no grafting of one optimizer on another here')
