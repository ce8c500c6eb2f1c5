"""Models that classify examples, or each token by itself.

Shapes: B batch, T time, C classes.
"""

import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics

from pax_compat import base_input, base_model, errors
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.input_core import example_rows
from pax_compat.layers import embedding_softmax, linears
from pax_compat.layers.models import token_models
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.nested_map import NestedMap

# The k of top-k metrics, for models with more than k classes.
_TOP_K = 5
# The names of the loss, and of the cross-entropy, which it is.
_LOSSES = ('total_loss', 'loss', 'avg_xent', 'log_pplx')


class ClassificationModel(base_model.BaseModel):
  """Predicts the class of each example, such as an image.

  A batch has two fields, whose names are settings, and optionally `weight` and
  `eval_sample_weights` [B], whose product is the weight of an example.

  Metrics are `total_loss`, also named `loss`, `avg_xent` and `log_pplx`, in
  nats; `accuracy` and `error`; with more than 5 classes the top-5 `acc5` and
  `error5`; and `num_predictions`. They exclude auxiliary losses of layers.

  Attributes:
    network_tpl: maps the inputs to features [B, D].
    softmax_tpl: maps features to classes.
    input_field: name of the batch's inputs, [B, ...].
    label_field: name of the batch's labels: probabilities of classes, [B, C],
      or classes, [B], whole numbers of any dtype.
  """

  network_tpl: Config = REQUIRED
  softmax_tpl: Config = sub_config_field(full_softmax.FullSoftmax)
  input_field: str = 'image'
  label_field: str = 'label_probs'

  def setup(self):
    self.create_child('network', self.network_tpl)
    self.create_child('softmax', self.softmax_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns `features`, `softmax_output` and `example_weights` [B]."""
    labels = self._labels(input_batch)
    features = self._features(input_batch)
    weights = _example_weights(input_batch, labels.shape[0])
    kind = 'class_ids' if labels.ndim == 1 else 'class_probabilities'
    output = self.softmax(features, class_weights=weights, **{kind: labels})
    if 'logits' not in output:
      output.logits = self.softmax.get_logits(features)
    return NestedMap(
      features=features, softmax_output=output, example_weights=weights
    )

  def _features(self, input_batch: NestedMap) -> jax.Array:
    return self.network(self._field(input_batch, 'input_field'))

  def _labels(self, input_batch: NestedMap) -> jax.Array:
    """Returns probabilities [B, C], or classes as integers, [B]."""
    labels = self._field(input_batch, 'label_field')
    is_float = jnp.issubdtype(labels.dtype, jnp.floating)
    # Some inputs, such as Lingvo's tiny data sets, give classes as floats.
    return labels.astype(jnp.int32) if labels.ndim == 1 and is_float else labels

  def _field(self, input_batch: NestedMap, setting: str) -> jax.Array:
    name = getattr(self, setting)
    if name not in input_batch:
      raise errors.UserError(
        f'ClassificationModel.{setting} is {name!r}, which is not in the batch'
        f'{errors.did_you_mean(name, input_batch)}; expected one of'
        f' {", ".join(input_batch)}'
      )
    return jnp.asarray(input_batch[name])

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs.

    The latter are `labels`, `scores` (the logits [B, C]), and
    `eval_sample_weights` if the batch has them.
    """
    output, weights = predictions.softmax_output, predictions.example_weights
    labels = self._labels(input_batch)
    total = output.total_weight
    metrics = NestedMap(
      {name: (output.avg_xent, total) for name in _LOSSES},
      num_predictions=(total, 1.0),
    )
    ranks = _ranks(output.logits, _classes(labels))
    for k, accuracy, error in (
      (1, 'accuracy', 'error'),
      (_TOP_K, 'acc5', 'error5'),
    ):
      if k == 1 or output.logits.shape[-1] > k:
        hits = ranks < k
        for name, cases in ((accuracy, hits), (error, ~hits)):
          mean = jnp.sum(cases * weights) / jnp.maximum(total, 1e-6)
          metrics[name] = (mean, total)
    outputs = NestedMap(labels=labels, scores=output.logits)
    of_examples = token_models.example_weights(input_batch)
    if of_examples is not None:
      outputs[example_rows.WEIGHTS] = of_examples
    return metrics, outputs

  def predict(self, input_batch: NestedMap) -> NestedMap:
    """Returns `logits` and their `logp`, [B, C]; labels are not needed."""
    logits = self.softmax.get_logits(self._features(input_batch))
    return NestedMap(logits=logits, logp=self.softmax.logits_to_logp(logits))

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Returns the metrics of `compute_loss`, and `accuracy` as a clu metric."""
    predictions = self.compute_predictions(input_batch)
    metrics, _ = self.compute_loss(predictions, input_batch)
    accuracy = clu_metrics.Accuracy.from_model_output(
      logits=predictions.softmax_output.logits,
      labels=_classes(self._labels(input_batch)),
      mask=predictions.example_weights,
    )
    return metrics, NestedMap(), NestedMap(accuracy=accuracy)

  def process_decode_out(
    self, input_obj: base_input.BaseInput, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Returns nothing: the results are the metrics of `decode`."""
    return NestedMap(), [], NestedMap()


def _example_weights(input_batch: NestedMap, rows: int) -> jax.Array:
  weights = jnp.ones([rows], jnp.float32)
  for name in ('weight', example_rows.WEIGHTS):
    if name in input_batch:
      if jnp.shape(input_batch[name]) != (rows,):
        raise errors.UserError(
          f"ClassificationModel: the batch's {name} has the shape"
          f' {list(jnp.shape(input_batch[name]))}; expected [{rows}]'
        )
      weights = weights * input_batch[name]
  return weights


def _classes(labels: jax.Array) -> jax.Array:
  """Returns the label, or most likely label, of each example, [B] int."""
  return labels if labels.ndim == 1 else jnp.argmax(labels, axis=-1)


def _ranks(logits: jax.Array, classes: jax.Array) -> jax.Array:
  """Returns the rank of each label by its logit, [B], 0 for the largest.

  Classes with equal logits are ranked by index.
  """
  logit = jnp.take_along_axis(logits, classes[:, None], axis=-1)
  earlier = jnp.arange(logits.shape[-1]) < classes[:, None]
  return jnp.sum((logits > logit) | ((logits == logit) & earlier), axis=-1)


class ClassificationMLPModel(base_model.BaseModel):
  """Predicts a label for each token, from that token alone.

  A batch has `ids` and `labels` [B, T] int, `weights` [B, T], and optionally
  `eval_sample_weights` [B]. Metrics are in nats: `total_loss`, also named
  `loss`; `avg_xent`, also named `log_pplx`;
  `fraction_of_correct_next_step_preds`; and `num_predictions`.

  Attributes:
    mlp_tpl: maps embedded tokens to features of the same dims.
    softmax_tpl: embeds tokens, and maps features to labels.
  """

  mlp_tpl: Config = sub_config_field(linears.MLPBlock)
  softmax_tpl: Config = sub_config_field(
    embedding_softmax.SharedEmbeddingSoftmax
  )

  def setup(self):
    self.create_child('mlp', self.mlp_tpl)
    self.create_child('softmax', self.softmax_tpl)

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns the output of the softmax."""
    features = self.mlp(self.softmax.emb_lookup(input_batch.ids))
    return self.softmax(
      features,
      class_weights=self._weights(input_batch),
      class_ids=input_batch.labels,
    )

  def _weights(self, input_batch: NestedMap) -> jax.Array:
    return token_models.token_weights(
      input_batch.weights, token_models.example_weights(input_batch)
    )

  def compute_loss(self, predictions: NestedMap, input_batch: NestedMap):
    """Returns the weighted metrics, and the per-example outputs."""
    labels, weights = input_batch.labels, self._weights(input_batch)
    metrics = token_models.token_metrics(predictions, labels, weights)
    return metrics, token_models.example_outputs(
      predictions, labels, weights, token_models.example_weights(input_batch)
    )
