"""The name of an optimizer that needs a library which does not exist today."""

import dataclasses
from typing import Any

from pax_compat import errors
from pax_compat.optimizers.base import BaseOptimizer


def _refuse():
  raise errors.UserError(
    'DistributedShampoo is not supported: the one library that has it'
    ' (optax-shampoo 0.0.6, of 2022) does not run on this JAX. Use Shampoo,'
    ' which has fewer options, ShardedAdafactor, or'
    ' OptaxOptimizer.config(grad_tx=Config(optax.contrib.muon, ...)), whose'
    ' steps are preconditioned too; OptaxOptimizer takes any Shampoo that is an'
    ' optax transformation.'
  )


class DistributedShampoo(BaseOptimizer):
  """Shampoo with all of Pax's options, which is not supported.

  Raises:
    UserError: always, and already from its config, whatever fields are given.
  """

  HParamsImageClassification = staticmethod(_refuse)
  HParamsLanguageModeling = staticmethod(_refuse)
  HParamsLargeLanguageModeling = staticmethod(_refuse)

  # Made before any field is looked at, so that this is the error a user sees.
  unsupported: Any = dataclasses.field(default_factory=_refuse)


class ShardedDistributedShampoo(DistributedShampoo):
  """`DistributedShampoo`, which is not supported."""
