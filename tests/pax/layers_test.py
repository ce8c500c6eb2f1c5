"""Layers against Pax's: variables, outputs to 1e-5, gradients to 1e-4."""

import functools
import types

import jax
import numpy as np
import pytest

from adaptors.pax_names.own import array_functions, transformer_masks
from lm_tasks.vision.params import mnist
from pax_compat import base_layer, config, layers
from pax_compat.layers import ctc_objectives, vits
from pax_compat.layers.normalizations import moments
from pax_compat.layers.quantizer import quantizer_objectives
from tests.pax import cases, layer_cases

_NAMES = types.SimpleNamespace(
  layers=types.SimpleNamespace(
    CNN=mnist.CNN,
    **vars(ctc_objectives)
    | vars(vits)
    | vars(layers.video)
    | vars(moments)
    | vars(quantizer_objectives)
    | vars(array_functions)
    | vars(transformer_masks)
    | vars(layers),
  ),
  Config=config.Config,
  WeightInit=base_layer.WeightInit,
  chain=layers.chain,
)


_recorded = functools.cache(cases.read)


def _ours(case, monkeypatch) -> dict[str, np.ndarray]:
  if isinstance(case, layer_cases.FunctionCase):
    return case.computed(_NAMES)
  layer = case.config(_NAMES).Instantiate()
  keys = {'params': jax.random.key(0), 'random': jax.random.key(0)}
  with base_layer.eval_mode(not case.train):
    init = functools.partial(layer.init, method=case.method)
    made = jax.eval_shape(
      lambda: base_layer.unbox(init(keys, *case.inputs, **case.named))
    )
    keys_of_case = layer_cases.Keys().next
    monkeypatch.setattr(base_layer.BaseLayer, 'next_prng_key', keys_of_case)
    shapes = {c: made[c] for c in layer_cases.COLLECTIONS if c in made}

    def apply(variables, inputs, named):
      outputs, updated = layer.apply(
        variables,
        *inputs,
        method=case.method,
        rngs=keys,
        mutable=case.mutable,
        **named,
      )
      return outputs, updated.get('non_trainable', {})

    return layer_cases.computed(case, shapes, apply)


@pytest.mark.parametrize(
  'group, name', [(g, name) for g, found in cases.ALL.items() for name in found]
)
def test_layers_compute_what_pax_computes(group, name, monkeypatch):
  ours = _ours(cases.ALL[group][name], monkeypatch)
  wrong = layer_cases.differences(ours, _recorded(group)[name])
  assert not wrong, '\n'.join(wrong)
