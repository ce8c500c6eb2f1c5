"""Records what Pax computes: configs, variables, losses and gradients.

    python -m tests.pax.record PAXML PRAXIS [PACKAGES]

PAXML and PRAXIS are checkouts of google/paxml and google/praxis, PACKAGES is a
folder with the packages that praxis needs and this project does not: chex,
jaxtyping, jax-bitempered-loss, optax-shampoo, toolz, typeguard, wadler-lindig.
It writes the files of `recorded`, which the tests read, so that the tests need
nothing of this. The files of 2026 are from paxml b397693 and praxis feeaff1.
"""

import importlib
import itertools
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptors.pax_names.check.numbers import Numbers, by_path
from tests.pax import recorded, tiny

_MODULES = ('lm_cloud', 'c4', 'c4_multislice')


class _Anything:
  """Stands in for what t5 has: C4's data, which is not read here."""

  def __init__(self, *args: Any, **kwargs: Any):
    pass

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self


def mount(folders: list[str]):
  """Makes Pax importable."""
  sys.path[:0] = folders[:2]
  sys.path += folders[2:]
  from adaptors import lingvo_runtime

  lingvo_runtime.load()  # Pax's inputs import Lingvo.
  registry = type('TaskRegistry', (), {'add': staticmethod(_Anything())})
  contents = {
    't5': {},
    't5.data': {
      'TaskRegistry': registry,
      'SentencePieceVocabulary': _Anything,
      'PassThroughVocabulary': _Anything,
      'Feature': _Anything,
    },
    't5.data.preprocessors': {
      name: _Anything()
      for name in (
        'rekey',
        'reduce_concat_tokens',
        'split_tokens_to_targets_length',
      )
    },
  }
  for name, values in contents.items():
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module
    parent, _, last = name.rpartition('.')
    if parent:
      setattr(sys.modules[parent], last, module)


def _experiments() -> dict[str, type]:
  """Returns the classes of Pax's experiments by `module.Class`."""
  found = {}
  for name in _MODULES:
    module = importlib.import_module(f'paxml.tasks.lm.params.{name}')
    registry = importlib.import_module('paxml.experiment_registry')
    found |= {
      f'{name}.{cls.__name__}': cls
      for cls in registry.get_all().values()
      if cls.__module__ == module.__name__
    }
  return dict(sorted(found.items()))


def _variables(model: Any, batch: dict[str, np.ndarray]) -> dict[str, list]:
  """Returns {path: [shape, split, dtype]} of a model."""
  nested_map = importlib.import_module('praxis.py_utils').NestedMap
  metadata = model.abstract_init_with_metadata(nested_map(batch))
  return {
    path: [
      [*(x.repeat_prefix or ()), *x.shape],
      [
        *(x.repeat_prefix_split_dims_mapping or ()),
        *(x.tensor_split_dims_mapping or ()),
      ],
      str(np.dtype(x.dtype)),
    ]
    for path, x in nested_map.FromNestedDict(metadata).FlattenItems()
  }


def _numbers(model: Any, batch: dict[str, np.ndarray]) -> Numbers:
  """Returns the weights, metrics and gradients of a model in an evaluation."""
  base_layer = importlib.import_module('praxis.base_layer')
  nested_map = importlib.import_module('praxis.py_utils').NestedMap
  batch = nested_map({name: jnp.asarray(x) for name, x in batch.items()})
  settings = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=settings):
    variables = model.init(jax.random.PRNGKey(3), batch)
  # Biases and scales are 0 at first, which would hide what they do.
  numbers = itertools.count()
  variables = jax.tree.map(
    lambda x: (
      x + 0.1 * jax.random.normal(jax.random.key(next(numbers)), x.shape)
    ),
    variables,
  )

  def loss(params):
    with base_layer.JaxContext.new_context(hparams=settings):
      (metrics, _), _ = model.apply(
        {**variables, 'params': params},
        batch,
        mutable=['aux_loss', 'summaries', 'non_trainable'],
        rngs={name: jax.random.PRNGKey(1) for name in ('random', 'params')},
      )
    return metrics['total_loss'][0], metrics

  grads, metrics = jax.jit(jax.grad(loss, has_aux=True))(variables['params'])
  return Numbers(
    params=by_path(variables['params']),
    metrics={name: np.asarray(value) for name, (value, _) in metrics.items()},
    weights={name: np.asarray(weight) for name, (_, weight) in metrics.items()},
    grads=by_path(grads),
  )


def main():
  mount(sys.argv[1:])
  hyperparams = importlib.import_module('praxis.base_hyperparams')
  experiments = _experiments()
  tasks, variables, numbers = {}, {}, {}
  for name in tiny.EXPERIMENTS:
    model = tiny.shrunk(experiments[name]).task().model
    numbers[name] = _numbers(hyperparams.instantiate(model), tiny.batch())
    print(name, numbers[name].metrics['total_loss'], flush=True)
  for name, cls in experiments.items():
    task = cls().task()
    tasks[name] = hyperparams.nested_struct_to_text(task)
    if not name.endswith('Mlp'):
      rows = tiny.rows_of_microbatches(cls)
      model = hyperparams.instantiate(task.model)
      variables[name] = _variables(model, tiny.batch(rows))
    print(name, len(tasks[name].splitlines()), flush=True)
  recorded.write(tasks, variables, numbers)


if __name__ == '__main__':
  main()
