"""Lingvo's pipelines and ours.

Shapes: B batch, D dims, S stages.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.registry import Translated
from adaptors.translate.transformers import pipelines
from adaptors.translate.variables import (
  Chain,
  Reshape,
  Stack,
  Transpose,
  Variable,
  VariableMap,
)
from pax_compat.layers import StackedTransformer
from tests.adaptors.translate import parity

B, D, S = 6, 4, 3


def _pipeline(**fields):
  """Returns Params of a pipeline of projections."""
  gshard_layers = lingvo_runtime.module('lingvo.core.gshard_layers')
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = gshard_layers.LayerwiseShardablePipelinedLayer.Params()
  params.single_stage_body = layers.ProjectionLayer.Params().Set(
    name='stage',
    input_dim=D,
    output_dim=D,
    activation='TANH',
    has_bias=True,
    batch_norm=False,
  )
  # Lingvo takes layers of one name for the same.
  name = '_'.join(['pipeline', *fields])
  return params.Set(name=name, num_stages=S, **fields)


@pytest.mark.parametrize('do_eval', [False, True])
@pytest.mark.parametrize(
  'fields',
  [
    dict(num_microbatches=2),
    dict(microbatch_size=1, per_stage_vars=True),
    # The inputs are split already, which Lingvo does not unroll.
    dict(unroll='never'),
  ],
  ids=','.join,
)
def test_layers_in_stages(fields, do_eval):
  pytest.importorskip('lingvo')
  params = _pipeline(**fields)
  params.name += f'_{do_eval}'
  shape = [2, B, D] if 'unroll' in fields else [B, D]
  parity.check_layer(
    params,
    [np.random.default_rng(1).normal(size=shape).astype(np.float32)],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  'fields',
  [
    dict(circular_repeat=2),
    dict(aux_loss_microbatch_accumulation='sum'),
    dict(single_stage_body=None),
  ],
  ids=','.join,
)
def test_pipelines_that_are_refused(fields):
  pytest.importorskip('lingvo')
  (name,) = fields
  assert any(name in issue for issue in parity.issues_of(_pipeline(**fields)))


def test_first_values_that_go_by_the_whole_shape():
  pytest.importorskip('lingvo')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  params = _pipeline()
  params.single_stage_body.params_init = (
    py_utils.WeightInit.UniformUnitScaling()
  )
  (issue,) = parity.issues_of(params)
  assert 'single_stage_body' in issue and 'uniform_unit_scaling' in issue


def test_variables_of_stages_go_back_and_forth():
  turned = Chain((Transpose((1, 0)), Reshape((4, 6), (4, 2, 3))))
  stage = Translated(
    StackedTransformer.config(model_dims=4, num_layers=1),
    VariableMap(
      [
        Variable(('b',), 'bias/b'),
        Variable(('w',), 'linear/w', turned),
        Variable(('layer[0].v', 'layer[1].v'), 'repeat/v', Stack()),
      ]
    ),
  )
  made = pipelines.of_stages(stage, stages=S, microbatches=2)
  assert made.config.pipeline_stage is stage.config
  rng = np.random.default_rng(0)
  shapes = {'b': [5], 'w': [6, 4], 'layer[0].v': [7], 'layer[1].v': [7]}
  theta = {
    f'pipeline.body.{name}': rng.normal(size=[S, *shape])
    for name, shape in shapes.items()
  }
  body = made.variables.to_jax(theta)['pipeline']['body']
  paths = {
    'pipeline/body/bias/b': body['bias']['b'],
    'pipeline/body/linear/w': body['linear']['w'],
    'pipeline/body/repeat/v': body['repeat']['v'],
  }
  for i in range(S):
    of_stage = {name: theta[f'pipeline.body.{name}'][i] for name in shapes}
    want = stage.variables.to_jax(of_stage)
    np.testing.assert_array_equal(body['bias']['b'][i], want['bias']['b'])
    np.testing.assert_array_equal(body['linear']['w'][i], want['linear']['w'])
    np.testing.assert_array_equal(body['repeat']['v'][i], want['repeat']['v'])
  back = made.variables.to_lingvo(paths)
  assert set(back) == set(theta)
  for name, value in theta.items():
    np.testing.assert_array_equal(back[name], value)
