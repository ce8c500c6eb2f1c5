"""Times beam search of a translation model against TensorFlow Lingvo's own.

    python -m benchmarks.translation_decode --rounds=5

Both decode the same batch with the same weights, of a small Transformer by mt's
Params: encoder, and `target_seq_len` steps of the search. Hypotheses
must agree before anything is timed. A ratio is the median over the rounds of
our batches per second over Lingvo's in the same round. Strings are not part of
it: they are Lingvo's in both cases.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, logging

from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity import batches as parity_batches
from benchmarks import command_line, decode, family_step
from pax_compat import base_layer
from tests.adaptors.bridge.families import mt_transformer, sentence_pairs

# Of each side.
_LAYERS = 2


def transformer(*, dims: int, vocab_size: int) -> Any:
  """Returns Params of a Transformer."""
  return mt_transformer.task_params(
    model_dim=dims,
    hidden_dim=4 * dims,
    num_heads=4,
    num_layers=_LAYERS,
    vocab_size=vocab_size,
  )


def measure(
  params: Any, *, batch_size: int, steps: int, beams: int, rounds: int
) -> tuple[float, float, float]:
  """Returns our batches per second, Lingvo's, and the median ratio.

  Args:
    params: of a translation task; it is changed.
    batch_size: number of sentences.
    steps: of the search.
    beams: hypotheses of a sentence.
    rounds: number of measurements.
  """
  params.decoder.target_seq_len = steps
  params.decoder.beam_search.num_hyps_per_beam = beams
  params.decoder.beam_search.force_eos_in_last_step = True
  batch = sentence_pairs.batch(0, batch_size)
  translated = bridge_task.translate(params, 'mt', 'native')
  model = translated.config.model.Instantiate()
  with fed_task.build(params, batch, do_eval=True) as made:
    found = _lingvo_search(made, batch)
    made.start()
    weights = made.session.run(dict(made.task.vars.FlattenItems()))
    variables = {
      base_layer.PARAMS: translated.variables.only(is_trainable=True).to_jax(
        weights
      )
    }
    nested = parity_batches.nested(batch)

    @jax.jit
    def search(variables, batch):
      with base_layer.eval_mode():
        return model.apply(variables, batch, method='decode')[1]['found']

    both = [lambda: search(variables, nested), found]
    ours, lingvo = (jax.device_get(function()) for function in both)
    np.testing.assert_array_equal(ours['lengths'].ravel(), lingvo['lengths'])
    np.testing.assert_allclose(ours['scores'], lingvo['scores'], rtol=1e-4)
    times = decode.times(both, rounds)
  ratios = [theirs / own for own, theirs in zip(*times, strict=True)]
  rates = [1 / statistics.median(taken) for taken in times]
  return (*rates, statistics.median(ratios))


def _lingvo_search(made: Any, batch: dict) -> Callable:
  """Returns a function that runs Lingvo's encoder and search."""
  nested = made.task.input_generator.GetPreprocessedInputBatch()
  outputs = made.task.Decode(nested)
  fetched = {
    'lengths': outputs['topk_lens'],
    'scores': outputs['topk_scores'],
  }
  return lambda: made.session.run(fetched, made.feed_dict(batch))


def main(argv: Sequence[str]):
  """Prints the measurements."""
  del argv
  ours, lingvo, ratio = measure(
    transformer(dims=128, vocab_size=4096),
    batch_size=16,
    steps=32,
    beams=4,
    rounds=command_line.ROUNDS.value,
  )
  print(
    f'batches/s: ours {ours:.2f}, TF Lingvo {lingvo:.2f}, ours/Lingvo'
    f' {ratio:.2f}'
  )


if __name__ == '__main__':
  family_step.without_onednn()
  logging.set_verbosity(logging.WARNING)
  app.run(main)
