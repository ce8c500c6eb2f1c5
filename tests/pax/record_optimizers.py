"""Records the weights after steps of Pax's optimizers.

    python -m tests.pax.record_optimizers PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes optimizers.npz.

Pax's Shampoo is optax-shampoo 0.0.6, of 2022: it is run with the names that JAX
had then, without the arguments that it does not have, which are at their
defaults, and on one device, where sharding constraints do nothing.
"""

import importlib
import inspect
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

from tests import source_tree
from tests.pax import optimizer_cases, record

RECORDED = source_tree.ROOT / 'testdata/pax/optimizers.npz'


def _while_loop(condition, body, start):
  """Starts with the dtypes that the body returns, as JAX once did."""
  after = jax.eval_shape(body, start)
  start = jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), start, after)
  return jax.lax.while_loop(condition, body, start)


def mend_shampoo(optimizers):
  """Makes optax-shampoo run on this JAX, and with this praxis."""
  library = importlib.import_module('optax_shampoo.distributed_shampoo')
  quantization = importlib.import_module('optax_shampoo.quantization_utils')
  for module in (library, quantization):
    old = types.ModuleType('jax')
    old.__dict__.update(vars(jax))
    old.tree_map = jax.tree.map
    old.tree_flatten = jax.tree.flatten
    old.tree_unflatten = jax.tree.unflatten
    module.jax = old
  old_lax = types.ModuleType('lax')
  old_lax.__dict__.update(vars(jax.lax))
  old_lax.while_loop = _while_loop
  for module in (library, library.jax):
    module.lax = old_lax
  library.pjit = types.SimpleNamespace(
    PartitionSpec=jax.sharding.PartitionSpec,
    with_sharding_constraint=lambda x, spec: x,
  )
  known = inspect.signature(library.distributed_shampoo).parameters

  def known_only(**fields):
    assert not any(v for k, v in fields.items() if k not in known)
    return library.distributed_shampoo(
      **{k: v for k, v in fields.items() if k in known}
    )

  optimizers.distributed_shampoo_optimizer = known_only


def main():
  record.mount(sys.argv[1:])
  optimizers = importlib.import_module('praxis.optimizers')
  mend_shampoo(optimizers)
  schedules = importlib.import_module('praxis.schedules')
  found = {}
  for name in optimizer_cases.CASES:
    config = optimizer_cases.config(optimizers, schedules, name)
    transformation = config.Instantiate().get_grad_transformation()
    weights = jax.tree.map(jnp.asarray, optimizer_cases.weights())
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
