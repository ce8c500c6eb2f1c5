"""GPipe's cells and micro-batches in a bridged task, against real Lingvo."""

import jax
import pytest

from adaptors.bridge import task as bridge_task
from adaptors.params import params_trees
from tests.adaptors import native_library, small_experiments
from tests.adaptors.bridge import family_parity
from tests.adaptors.translate import parity

pytestmark = native_library.NEEDS_LINGVO

_DECODER = 'num_decoder_layers'
_STOCK = 'lm.one_billion_wds.OneBWdsGPipeTransformerWPM'


def _without_dropout(params):
  for node in params_trees.all_params(params):
    for name, value in list(node.IterParams()):
      if 'dropout' in name and isinstance(value, float):
        node.Set(**{name: 0.0})
  return params


@pytest.mark.slow
def test_a_pipeline_has_lingvos_losses_and_gradients():
  params = _without_dropout(small_experiments.task_params(_STOCK))
  [stack] = [
    node for node in params_trees.all_params(params) if 'splits' in node
  ]
  layers = 'num_encoder_layers' if stack.num_encoder_layers else _DECODER
  stack.Set(splits=[1, 2], num_micro_batches=2, micro_batch_size=2)
  stack.Set(**{layers: 2})
  batch = small_experiments.batch(params)
  lingvos = family_parity.run_lingvo(params, [batch], static_shapes=True)
  translated = bridge_task.translate(params, 'pipeline', 'bridge')
  bridged = family_parity.Bridged(translated, batch, jax.devices()[:1])
  loss, gradients, _ = bridged.loss_and_gradients(
    bridged.mdl_vars(lingvos.variables[0]), batch
  )
  parity.assert_close(loss, lingvos.losses[0], 1e-5, 'loss')
  parity.assert_gradients_close(gradients, lingvos.gradients[0])
