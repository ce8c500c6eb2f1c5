"""Variables of Lingvo's optimizers without a counterpart in a state here.

Training here does not need them: an `AdaGraft` overwrites its slots before it
reads them, a `DynamicAccumulator` reports the weight of its last update, and
Keras keeps an optimizer's settings as variables.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from adaptors.checkpoints.slots import OptimizerMetadata
from adaptors.translate.training import optimizers
from pax_compat import optimizers as pax_optimizers

# Fields of Lingvo's accumulator of weighted batches.
SUM_OF_WEIGHTS = 'accum_weight'
_LAST_SUM = 'accum_weight_at_update'
# Keras' learning rate decay, which Lingvo does not set.
_DECAY = 'decay'


@dataclasses.dataclass(frozen=True)
class Constant:
  """A variable that gets one value whenever a checkpoint is exported.

  Attributes:
    name: of its tensor.
    value: of all elements, float32.
    like: name of a weight whose shape it has; '' for a scalar.
    is_setting: whether a checkpoint with another value belongs to another
      experiment; else the value of a checkpoint is ignored.
  """

  name: str
  value: float = 0.0
  like: str = ''
  is_setting: bool = False

  def array(self, shape: Sequence[int] = ()) -> np.ndarray:
    """Returns its tensor, by the shape of `like`."""
    return np.full(shape, self.value, np.float32)


def of_optimizer(
  one: OptimizerMetadata, names: Mapping[str, str], weights: Sequence[str]
) -> Iterator[Constant]:
  """Yields the constants of an optimizer.

  Args:
    one: the optimizer.
    names: of Lingvo's variables by theta path.
    weights: names of the weights that it trains.
  """
  last = optimizers.wrapped(one.config)[-1]
  if one.sums_weights and not one.part:
    yield Constant(names[one.theta_of(_LAST_SUM)])
  if one.kind is pax_optimizers.Graft:
    for weight in weights:
      yield Constant(f'{weight}/{one.name}', like=weight)
      if one.is_diagnostic:
        yield Constant(f'{weight}/{one.name}_1')
        yield Constant(f'{weight}/{one.name}_2')
  if one.keras_scope and weights:
    settings = {'beta_1': last.beta1, 'beta_2': last.beta2, _DECAY: 0.0}
    for name, value in settings.items():
      yield Constant(f'{one.keras_scope}{name}', value, is_setting=True)
