"""A model that recognises speech.

Shapes: B batch, S time of the spectrogram, F frequency bins, C channels, T
target time, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_model
from pax_compat.config import REQUIRED, Config
from pax_compat.decoder_hparams import DecoderHParams
from pax_compat.decoding import algorithms, prefixes
from pax_compat.layers.models import token_models
from pax_compat.nested_map import NestedMap


class SpeechModel(base_model.BaseModel):
  """Predicts the tokens of an utterance from its spectrogram.

  A batch has `src`, with `src_inputs` [B, S, F, C] and `paddings` [B, S], and
  `tgt`, with `ids`, `labels` and `paddings` [B, T], whose `ids` start with the
  begin token and whose `labels` end with the end token. Optional are
  `tgt.weights` [B, T], 1 - `paddings` by default; `tgt.probs` [B, T, V], target
  distributions that replace the labels in the loss; and `eval_sample_weights`
  [B].

  Metrics are in nats: `total_loss`, also named `loss`; `avg_xent`, also named
  `log_pplx`; `token_normed_prob`, the geometric mean of the probabilities of
  tokens; `fraction_of_correct_next_step_preds`; and `num_predictions`.

  Attributes:
    encoder_tpl: the encoder, such as `RecurrentSpeechEncoder`.
    decoder_tpl: the decoder, such as `RnnAttentionDecoder`.
    loss_per_sequence: whether the loss is the mean over utterances of their
      tokens' sum, and not the mean over tokens.
    search_tpl: settings of `search`; None if the model is not decoded by it.
  """

  encoder_tpl: Config = REQUIRED
  decoder_tpl: Config = REQUIRED
  loss_per_sequence: bool = False
  search_tpl: DecoderHParams | Config | None = None

  def setup(self):
    self.create_child('encoder', self.encoder_tpl)
    self.create_child('decoder', self.decoder_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the decoder's output for the batch."""
    src, tgt = input_batch.src, input_batch.tgt
    encoded, paddings = self.encoder(src.src_inputs, src.paddings)
    labels = NestedMap(class_weights=_weights(input_batch))
    if 'probs' in tgt:
      labels.class_probabilities = tgt.probs
    else:
      labels.class_ids = tgt.labels
    return self.decoder(encoded, paddings, tgt.ids, tgt.paddings, labels=labels)

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    labels, weights = input_batch.tgt.labels, _weights(input_batch)
    of_examples = token_models.example_weights(input_batch)
    metrics = token_models.token_metrics(predictions, labels, weights)
    pplx, count = metrics.log_pplx
    metrics.token_normed_prob = jnp.exp(-pplx), count
    if self.loss_per_sequence:
      rows = jnp.float32(len(labels))
      if of_examples is not None:
        rows = jnp.sum(of_examples)
      loss = predictions.total_xent / jnp.maximum(rows, 1e-6)
      metrics.loss = metrics.total_loss = loss, rows
    return metrics, token_models.example_outputs(
      predictions, labels, weights, of_examples
    )

  def search(self, input_batch: NestedMap, start: int) -> NestedMap:
    """Searches the tokens of utterances, by `search_tpl`.

    Args:
      input_batch: has `src` and optionally `eval_sample_weights`.
      start: the begin token.

    Returns:
      The result of `search_tpl`'s algorithm, such as that of `beam_search`.

    Raises:
      UserError: the settings are missing, or do not suit the model.
    """
    settings = self.search_tpl
    if isinstance(settings, Config):
      settings = settings.Instantiate()
    algorithms.check_settings(
      'SpeechModel.search_tpl',
      settings,
      getattr(self.decoder.softmax, 'num_classes', None),
    )
    src = input_batch.src
    encoded, paddings = self.encoder(src.src_inputs, src.paddings)
    rows = len(encoded)
    ids = jnp.full([rows, 1], start, jnp.int32)
    return algorithms.decode(
      self.decoder,
      settings,
      prefixes.create(ids, jnp.ones([rows], jnp.int32)),
      init_states=lambda decoder, _, repeats: decoder.init_decoder_states(
        jnp.repeat(encoded, repeats, axis=0),
        jnp.repeat(paddings, repeats, axis=0),
      ),
      extend_step=token_models.decoder_step,
      batch=input_batch,
      content=(ids, ids == start),
      source_paddings=paddings,
    )

  def encode(self, input_batch: NestedMap) -> NestedMap:
    """Encodes utterances.

    Args:
      input_batch: `src_inputs` [B, S, F, C] and `paddings` [B, S].

    Returns:
      `embeddings`, the encoder's output, and their `paddings`.
    """
    encoded, paddings = self.encoder(
      input_batch.src_inputs, input_batch.paddings
    )
    return NestedMap(embeddings=encoded, paddings=paddings)


def _weights(input_batch: NestedMap) -> jax.Array:
  """Returns the weights of target tokens, [B, T]."""
  tgt = input_batch.tgt
  weights = tgt.weights if 'weights' in tgt else 1.0 - tgt.paddings
  return token_models.token_weights(
    weights, token_models.example_weights(input_batch)
  )
