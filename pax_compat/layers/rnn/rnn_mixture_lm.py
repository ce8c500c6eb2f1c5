"""A language model with a mixture of recurrent experts.

Shapes: B batch, T time, L new tokens of a decoding step, E experts, D dims of a
vector, O output nodes of a stack, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers.attentions.attention_masks import Mask
from pax_compat.layers.embeddings.embedding_tables import Embedding
from pax_compat.layers.rnn.recurrent_stacks import StackFrnn
from pax_compat.layers.rnn.rnn_lm import RnnLm, step_paddings
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.template_fields import agreed
from pax_compat.nested_map import NestedMap


class RnnMixtureLm(base_layer.BaseLayer):
  """A mixture of recurrent stacks, gated per token, for `LanguageModel`.

  Each expert is a stack. One more stack, `rnns_0`, computes the gates, a
  softmax over experts. The mixture of the experts' outputs is the input of
  `merge_tpl` or of a softmax.

  Attributes:
    vocab_size: V.
    num_experts: E.
    shared_embedding: whether all stacks share one embedding, named `embedding`;
      else stack i has its own, `embedding_<i>`.
    embedding_tpl: the token embedding.
    rnns_tpl: the stacks, a copy each.
    gating_softmax_tpl: the softmax over experts.
    merge_tpl: the model that predicts tokens from the mixture: an `RnnLm`
      without an embedding; None uses `softmax_tpl`.
    softmax_tpl: the projection to the vocabulary and its loss, without a
      `merge_tpl`.
  """

  vocab_size: int = REQUIRED
  num_experts: int = REQUIRED
  shared_embedding: bool = True
  embedding_tpl: Config = sub_config_field(Embedding)
  rnns_tpl: Config = sub_config_field(StackFrnn)
  gating_softmax_tpl: Config = sub_config_field(FullSoftmax)
  merge_tpl: Config | None = sub_config_field(RnnLm, embedding_tpl=None)
  softmax_tpl: Config = sub_config_field(FullSoftmax)

  def setup(self):
    if self.shared_embedding:
      self._create('embedding', 'embedding_tpl', num_classes=self.vocab_size)
    for i in range(1 + self.num_experts):
      if not self.shared_embedding:
        self._create(
          f'embedding_{i}', 'embedding_tpl', num_classes=self.vocab_size
        )
      self._create(f'rnns_{i}', 'rnns_tpl')
    self._create(
      'gating_softmax', 'gating_softmax_tpl', num_classes=self.num_experts
    )
    if self.merge_tpl is not None:
      self._create('merge', 'merge_tpl', vocab_size=self.vocab_size)
    else:
      self._create('softmax', 'softmax_tpl', num_classes=self.vocab_size)

  def _create(self, name: str, field: str, **fields):
    """Creates a child from a copy of the template in `field`."""
    tpl = getattr(self, field).clone()
    where = f'RnnMixtureLm.{field}'
    self.create_child(name, tpl, **agreed(where, tpl, **fields))

  @property
  def _rnns(self) -> list:
    return [getattr(self, f'rnns_{i}') for i in range(1 + self.num_experts)]

  def __call__(
    self,
    inputs: jax.Array,
    paddings: jax.Array,
    labels: NestedMap | None = None,
  ) -> NestedMap:
    """Computes the cross-entropy loss, or predictions; see `RnnLm.__call__`."""
    mixture, _ = self._mixture(inputs, paddings, [None] * len(self._rnns))
    if self.merge_tpl is not None:
      return self.merge(mixture, paddings, labels)
    output = sequence_losses.loss_or_predictions(self.softmax, mixture, labels)
    output.last_hidden = mixture
    return output

  def _mixture(
    self, ids: jax.Array, paddings: jax.Array, states: list
  ) -> tuple[jax.Array, list]:
    """Returns the mixture [B, T, O], and the states of all stacks after it.

    Args:
      ids: [B, T].
      paddings: [B, T].
      states: of all stacks before it; each None for its initial state.
    """
    if self.shared_embedding:
      vectors = [self.embedding.emb_lookup(ids)] * len(states)
    else:
      vectors = [
        getattr(self, f'embedding_{i}').emb_lookup(ids)
        for i in range(len(states))
      ]
    outputs, after = [], []
    for rnn, x, state in zip(self._rnns, vectors, states, strict=True):
      padding = paddings[..., None].astype(x.dtype)
      y, state = rnn(NestedMap(act=x, padding=padding), state)
      outputs.append(y)
      after.append(state)
    gates = jax.nn.softmax(self.gating_softmax.get_logits(outputs[0]))
    experts = jnp.stack(outputs[1:], axis=2)
    return jnp.einsum('bte,bteo->bto', gates, experts), after

  def init_states(self, batch_size: int, max_length: int):
    """Initialises the decode states; see `RnnLm.init_states`."""
    states = [rnn.init_states(batch_size) for rnn in self._rnns]
    self.update_decode_state('rnns', states)
    if self.merge_tpl is not None:
      self.merge.init_states(batch_size, max_length)

  def extend_step(
    self,
    inputs: jax.Array,
    segment_pos: jax.Array | None = None,
    atten_mask: Mask = None,
    *,
    time_step: jax.Array,
  ) -> NestedMap:
    """Runs a decoding step; see `RnnLm.extend_step`."""
    del segment_pos
    paddings = step_paddings(inputs, time_step, atten_mask)
    mixture, states = self._mixture(
      inputs, paddings, self.get_decode_state('rnns')
    )
    self.update_decode_state('rnns', states)
    if self.merge_tpl is not None:
      return self.merge.extend_step(
        mixture, atten_mask=atten_mask, time_step=time_step
      )
    return sequence_losses.loss_or_predictions(self.softmax, mixture, None)
