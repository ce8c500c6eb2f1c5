"""Optimizers: configs of optax transformations."""

from pax_compat.optimizers.accumulation import (
  Accumulator,
  ShardedStaticAccumulator,
  WeightedAccumulator,
)
from pax_compat.optimizers.adafactor import Adafactor
from pax_compat.optimizers.adaptive import (
  Adagrad,
  Adam,
  AdamW,
  Lamb,
  RmsProp,
  ShardedAdagrad,
)
from pax_compat.optimizers.base import BaseOptimizer
from pax_compat.optimizers.distributed_shampoo import (
  DistributedShampoo,
  GraftingType,
)
from pax_compat.optimizers.graft import Graft
from pax_compat.optimizers.momentum import Lars, Lion, Sgd, ShardedSgd
from pax_compat.optimizers.shampoo import Shampoo
from pax_compat.optimizers.sharded import (
  GeneralGradientTransformation,
  ShardedGradientTransformation,
  count_init_fn,
  partition_params,
  reduce_mean,
  reduce_rms,
  sharded_chain,
  sharded_masked,
)
from pax_compat.optimizers.sharded_adafactor import ShardedAdafactor
from pax_compat.optimizers.sharded_distributed_shampoo import (
  ShardedDistributedShampoo,
)
from pax_compat.optimizers.wrapped import OptaxOptimizer

__all__ = [
  'Accumulator',
  'Adafactor',
  'Adagrad',
  'Adam',
  'AdamW',
  'BaseOptimizer',
  'DistributedShampoo',
  'GeneralGradientTransformation',
  'Graft',
  'GraftingType',
  'Lamb',
  'Lars',
  'Lion',
  'OptaxOptimizer',
  'RmsProp',
  'Sgd',
  'Shampoo',
  'ShardedAdafactor',
  'ShardedAdagrad',
  'ShardedDistributedShampoo',
  'ShardedGradientTransformation',
  'ShardedSgd',
  'ShardedStaticAccumulator',
  'WeightedAccumulator',
  'count_init_fn',
  'partition_params',
  'reduce_mean',
  'reduce_rms',
  'sharded_chain',
  'sharded_masked',
]
