"""Layers compute as in training: in compiled programs."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.interpreters import partial_eval


@pytest.fixture(autouse=True, scope='module')
def _compiled():
  """Compiles each call of `init` and `apply` as one program.

  Otherwise, each operation is compiled by itself, for each shape that it has:
  hundreds of programs, which take most of a test's time.
  """
  with pytest.MonkeyPatch.context() as patch:
    for name in ('init', 'init_with_output', 'apply'):
      patch.setattr(nn.Module, name, _in_one_program(getattr(nn.Module, name)))
    yield


def _in_one_program(method):
  """Returns a method of a module that is compiled with its arrays as inputs."""

  @functools.wraps(method)
  def compiled(self, *args, **kwargs):
    leaves, structure = jax.tree.flatten((args, kwargs))
    if any(isinstance(x, partial_eval.DynamicJaxprTracer) for x in leaves):
      return method(self, *args, **kwargs)  # Within a program.
    # An array that is given twice is one input, as a layer may compare them.
    arrays = {
      str(id(x)): x for x in leaves if isinstance(x, jax.Array | np.ndarray)
    }

    def run(arrays):
      merged = [arrays.get(str(id(leaf)), leaf) for leaf in leaves]
      args, kwargs = jax.tree.unflatten(structure, merged)
      return method(self, *args, **kwargs)

    try:
      return jax.jit(run)(arrays)
    except jax.errors.JAXTypeError:  # A value is needed while tracing.
      return method(self, *args, **kwargs)

  return compiled
