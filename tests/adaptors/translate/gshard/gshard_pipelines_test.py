"""GShard's pipelines against Lingvo's: a stock experiment in stages."""

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import PipelinedTransformer
from tests.adaptors import small_experiments
from tests.adaptors.translate import (
  lingvo_training,
  parity,
  task_parity,
  tiny_task,
)

pytest.importorskip('lingvo')


def _params(**fields):
  """Returns Params of four layers in two stages, and two micro-batches."""
  params = small_experiments.task_params(
    'lm.synthetic_packed_input.DenseLm8B2x2'
  )
  params.Set(
    num_transformer_layers=4,
    num_spmd_pipeline_stages=2,
    num_spmd_pipeline_microbatches=2,
  )
  return params.Set(**fields)


def test_gradients_and_losses_of_steps():
  """In training only: Lingvo's own evaluation of such a pipeline fails."""
  params = _params(num_transformer_layers=2)
  batches = [small_experiments.batch(params, seed) for seed in range(3)]
  theirs = lingvo_training.train(params, batches)
  stacked = [k for k in theirs.first if k.startswith('dec.pipeline.body.')]
  assert all(len(theirs.first[k]) == 2 for k in stacked)
  assert len(stacked) > len(theirs.first) / 2
  ours = task_parity.Ours.create(params, batches[0], theirs.first)
  parity.assert_gradients_close(ours.gradients(batches[0]), theirs.gradients)
  state = ours.state
  for step, (batch, want) in enumerate(
    zip(batches, theirs.losses, strict=True)
  ):
    state, outputs = ours.program.train_step(state, task_parity.nested(batch))
    parity.assert_close(
      outputs['loss'], np.float32(want), 1e-4 if step else 1e-5, f'loss {step}'
    )


def test_as_a_pipeline():
  model = tiny_task.translate(_params()).config.model
  stack = model.lm_tpl.stacked_transformer_tpl
  assert stack.cls is PipelinedTransformer
  assert stack.pipeline_stage.num_layers == 2
  assert stack.num_pipeline_microbatches == 2


@pytest.mark.parametrize(
  'fields',
  [
    dict(use_repeat_layer=True),
    dict(num_transformer_layers=3),
    dict(num_spmd_pipeline_microbatches=None),
  ],
)
def test_what_is_refused(fields):
  with pytest.raises(errors.UserError, match='task.num_spmd_pipeline_stages'):
    tiny_task.translate(_params(**fields))
