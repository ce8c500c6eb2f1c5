"""Quantized layers with fixed weights, to hold ours against Pax's.

    python -m tests.pax.quantized PAXML PRAXIS PACKAGES

records Pax's integers, scales and outputs in testdata/pax/layers/quantized.npz.
"""

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.pax import cases, layer_cases

GROUP = 'quantized'


@dataclasses.dataclass(frozen=True)
class Case:
  """A layer and its settings.

  Attributes:
    layer: name of the class.
    fields: its fields.
    inputs: the argument.
    weights: shapes of its weights before they are quantized, by path.
    method: the method that is called.
    transposed: whether Pax converts the transposed weight.
  """

  layer: str
  fields: Mapping[str, Any]
  inputs: np.ndarray
  weights: Mapping[str, tuple[int, ...]]
  method: str = '__call__'
  transposed: bool = False


_X = layer_cases.normal(2, 3, 16)
_HEADS = layer_cases.normal(2, 3, 2, 8)
_PROJECTION = dict(input_dim=16, num_heads=2, dim_per_head=8)
_SOFTMAX = dict(num_classes=24, input_dims=16)
_IDS = np.array([[3, 0, 23]])

CASES = {
  'linear': Case(
    'Linear', dict(input_dims=16, output_dims=12), _X, {'w': (16, 12)}
  ),
  'projection': Case(
    'AttentionProjection',
    _PROJECTION,
    _X,
    {'w': (16, 2, 8), 'b': (2, 8)},
  ),
  'output': Case(
    'AttentionProjection',
    dict(_PROJECTION, is_output_projection=True),
    _HEADS,
    {'w': (16, 2, 8), 'b': (16,)},
  ),
  'combined': Case(
    'CombinedQKVProjectionLayer',
    _PROJECTION,
    _X,
    {'w': (3, 16, 2, 8), 'b': (3, 2, 8)},
  ),
  'one_head': Case(
    'OneHeadedAttentionProjection',
    dict(input_dim=16, output_dim=8, use_bias=False),
    _X,
    {'w': (16, 8)},
  ),
  'logits': Case(
    'NClassMajorSharedEmbeddingSoftmax',
    dict(_SOFTMAX, use_bias=False),
    _X,
    {'w': (24, 16)},
    method='get_logits',
    transposed=True,
  ),
  'lookup': Case(
    'NClassMajorSharedEmbeddingSoftmax',
    dict(_SOFTMAX, use_bias=False),
    _IDS,
    {'w': (24, 16)},
    method='emb_lookup',
    transposed=True,
  ),
  'embedding': Case(
    'Embedding', _SOFTMAX, _IDS, {'emb_var': (24, 16)}, method='emb_lookup'
  ),
}

SETTINGS = {
  'int8': dict(precision=8),
  'asymmetric': dict(precision=8, use_symmetric=False),
  'clipped': dict(precision=8, clipping_coeff=0.8),
  'int4': dict(precision=4),
  'int4_in_int8': dict(
    precision=4, int4_packed_weights_container_dtype=jnp.int8
  ),
  'int4_unpacked': dict(precision=4, use_int4_packed_weights=False),
}


def supported(case: str, settings: str) -> bool:
  """Whether Pax supports the settings for the layer."""
  if case == 'embedding':
    return settings in ('int8', 'asymmetric', 'clipped')
  if case in ('logits', 'lookup', 'one_head'):
    return not settings.startswith('int4') or settings == 'int4_unpacked'
  return True


def weights(case: Case) -> dict[str, np.ndarray]:
  """Returns the weights of a case."""
  return {
    name: layer_cases.weight(name, shape, 1.0)
    for name, shape in case.weights.items()
  }


def quantization(names: Any, mode: str, settings: Mapping[str, Any], act: bool):
  """Returns the settings of a layer.

  Args:
    names: has the classes of the settings.
    mode: name of a `QuantizationMode`.
    settings: those of the weight.
    act: whether the inputs are quantized too.
  """
  return names.QuantizationParams(
    mode=names.QuantizationMode[mode],
    weight_params=names.WeightQuantizationParams(**settings),
    act_params=names.ActQuantizationParams() if act else None,
  )


def computed(
  make: Callable[[str, str, Mapping[str, Any], bool], Any],
  *,
  transposes: bool = False,
) -> dict[str, dict[str, np.ndarray]]:
  """Returns integers, scales and outputs by case and name.

  Args:
    make: maps the name of a layer, a mode, the settings of its weights, and
      whether inputs are quantized, with the fields, to a layer.
    transposes: whether weights of some layers are transposed before they are
      converted, as in Pax.
  """
  found = {}
  for name, case in CASES.items():
    for of_weight, settings in SETTINGS.items():
      if not supported(name, of_weight):
        continue
      own = weights(case)
      if transposes and case.transposed:
        own = {k: np.ascontiguousarray(v.T) for k, v in own.items()}
      layer = make(case.layer, 'MATERIALIZE', settings, False, case.fields)
      converted = layer.apply({'params': own}, method='quantize_weight')
      results = {
        f'weight:{k}': np.asarray(v) for k, v in converted['params'].items()
      }
      for act in (False, True) if _act(case, of_weight) else (False,):
        layer = make(case.layer, 'INFERENCE', settings, act, case.fields)
        outputs = layer.apply(converted, case.inputs, method=case.method)
        results[f'outputs:{act}'] = np.stack(outputs)
      found[f'{name}:{of_weight}'] = results
  return found


def _act(case: Case, settings: str) -> bool:
  return case.layer in ('Linear', 'AttentionProjection') and settings == 'int8'


def _pax_layer(layer, mode, settings, act, fields):
  from praxis import base_layer, pax_fiddle
  from praxis.layers import quantization as pax
  from praxis.layers.quantization import quantization_hparams

  config = pax_fiddle.Config(
    getattr(pax, layer),
    name='layer',
    quantization=quantization(quantization_hparams, mode, settings, act),
    **fields,
  )
  return _InContext(base_layer.instantiate(config), base_layer)


class _InContext(types.SimpleNamespace):
  """A layer of Pax, called for evaluation."""

  def __init__(self, layer, base_layer):
    super().__init__(layer=layer, base_layer=base_layer)

  def apply(self, variables, *inputs, method):
    hparams = self.base_layer.JaxContext.HParams(do_eval=True)
    with self.base_layer.JaxContext.new_context(hparams=hparams):
      return self.layer.apply(
        variables,
        *inputs,
        method=getattr(self.layer, method),
        mutable=['non_trainable'],
      )[0]


if __name__ == '__main__':
  from tests.pax import record

  record.mount(sys.argv[1:4])
  print(cases.write(GROUP, computed(_pax_layer, transposes=True)))
