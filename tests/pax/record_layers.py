"""Records what Pax's layers compute in the cases of `cases`.

    python -m tests.pax.record_layers PAXML PRAXIS PACKAGES [NAME ...]

The folders are those of `record`; each NAME is a group of cases, by default
all. It writes testdata/pax/layers/NAME.npz.
"""

import importlib
import pkgutil
import sys
import types

import jax

from tests.pax import cases, layer_cases, record


def _own(module) -> dict:
  """Returns what a module defines."""
  return {
    name: value
    for name, value in vars(module).items()
    if getattr(value, '__module__', '') == module.__name__
  }


def _names():
  """Returns Pax's layers and other names that cases use."""
  from praxis import base_layer, layers, pax_fiddle

  found = {}
  for info in pkgutil.iter_modules(layers.__path__):
    if not info.name.endswith('_test'):
      module = importlib.import_module(f'praxis.layers.{info.name}')
      found |= _own(module)
  for name in ('enc_dec_3dcnn', 'losses', 'quantizer', 'vqvae'):
    module = importlib.import_module(f'praxis.layers.video.{name}')
    found = _own(module) | found
  mnist = importlib.import_module('paxml.tasks.vision.params.mnist')
  found['CNN'] = mnist.CNN
  metrics = importlib.import_module('praxis.metric_utils')
  found['top_k_accuracy'] = metrics.top_k_accuracy
  lora = importlib.import_module('praxis.contrib.gpu.scripts_gpu.lora_layers')
  for name in ('Linear', 'AttentionProjection', 'CombinedQKVProjection'):
    found[f'Lora{name}'] = getattr(lora, f'Lora{name}')
  fp8 = importlib.import_module('praxis.layers.injection.fp8_nvidia_gpu')
  for name in ('Fp8EinsumOp', 'Fp8EinsumGatedOp'):
    found[name] = getattr(fp8, name)
  return types.SimpleNamespace(
    layers=types.SimpleNamespace(**found),
    Config=pax_fiddle.Config,
    WeightInit=base_layer.WeightInit,
    chain=importlib.import_module('praxis.layers.chain'),
  )


def _computed(case, names):
  if isinstance(case, layer_cases.FunctionCase):
    return case.computed(names)
  from praxis import base_layer

  config = case.config(names)
  if not config.name:
    config.name = 'layer'
  layer = base_layer.instantiate(config)
  hparams = base_layer.JaxContext.HParams(do_eval=not case.train)
  with base_layer.JaxContext.new_context(hparams=hparams):
    method = case.method
    if isinstance(method, str):
      method = getattr(layer, method)
    meta = layer.abstract_init_with_metadata(
      *case.inputs, method=method, **case.named
    )
    is_weight = lambda x: isinstance(x, base_layer.WeightHParams)  # noqa: E731
    shapes = {
      collection: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
          (*(x.repeat_prefix or ()), *x.shape), x.dtype
        ),
        dict(meta[collection]),
        is_leaf=is_weight,
      )
      for collection in layer_cases.COLLECTIONS
      if meta.get(collection)
    }

    base_layer.BaseLayer.next_prng_key = layer_cases.Keys().next

    def apply(variables, inputs, named):
      outputs, updated = layer.apply(
        variables,
        *inputs,
        method=method,
        mutable=case.mutable,
        rngs={base_layer.RANDOM: jax.random.PRNGKey(0)},
        **named,
      )
      kept = updated.get('non_trainable', {})
      return outputs, kept

    return layer_cases.computed(case, shapes, apply)


def main(folders: list[str], wanted: list[str]):
  record.mount(folders)
  names = _names()
  for group, found in cases.ALL.items():
    if wanted and group not in wanted:
      continue
    recorded = {name: _computed(case, names) for name, case in found.items()}
    path = cases.write(group, recorded)
    print(path, len(found), path.stat().st_size)


if __name__ == '__main__':
  main(sys.argv[1:4], sys.argv[4:])
