"""Records the weights after steps of Pax's optimizers.

    python -m tests.pax.record_optimizers PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes optimizers.npz.
"""

import importlib
import sys

import jax
import numpy as np

from tests import source_tree
from tests.pax import optimizer_cases, record

RECORDED = source_tree.ROOT / 'testdata/pax/optimizers.npz'


def main():
  record.mount(sys.argv[1:])
  optimizers = importlib.import_module('praxis.optimizers')
  schedules = importlib.import_module('praxis.schedules')
  found = {}
  for name in optimizer_cases.CASES:
    config = optimizer_cases.config(optimizers, schedules, name)
    transformation = config.Instantiate().get_grad_transformation()
    weights = jax.tree.map(jax.numpy.asarray, optimizer_cases.weights())
    state = transformation.init(weights)
    for step in range(optimizer_cases.STEPS):
      updates, state = transformation.update(
        optimizer_cases.gradients(step), state, weights
      )
      weights = jax.tree.map(lambda w, u: w + u, weights, updates)
    found |= {f'{name}/{key}': np.asarray(w) for key, w in weights.items()}
  np.savez_compressed(RECORDED, **found)


if __name__ == '__main__':
  main()
