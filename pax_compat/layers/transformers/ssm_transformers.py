"""Transformer layers with a state space model in place of self-attention.

Shapes: B batch, T time, S source time, L new positions of a decoding step, D
model dims.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config, sub_config_field
from pax_compat.layers import activations, linears
from pax_compat.layers.ssm import state_space
from pax_compat.layers.transformers.transformer_layers import Transformer


class SSMTransformer(Transformer):
  """A Transformer layer with a state space model, which is causal.

  The masks of self-attention have no effect: the model sees paddings and the
  packed examples before one.

  Attributes:
    ssm_tpl: the state space model; the fields below are set on it.
    ssm_nheads: its states per channel.
    ssm_dim: its channels, D.
    ssm_l_max: the longest sequence.
    ssm_hippo_type: chooses its eigenvalues.
    ssm_step_size: step of the discretization.
    decode_num_samples: samples for each row in decoding.
  """

  ssm_tpl: Config = sub_config_field(state_space.SSM)
  ssm_nheads: int = 0
  ssm_dim: int = 0
  ssm_l_max: int = 0
  ssm_hippo_type: str = 'ss4d-1d-legs'
  ssm_step_size: float = 0.1
  decode_num_samples: int = 4

  def _create_self_attention(self):
    if self.ssm_dim != self.input_dims:
      raise errors.wrong_field(
        self, 'ssm_dim', f'input_dims, {self.input_dims}'
      )
    self._create_ssm()

  def _create_ssm(self):
    self.create_child(
      'ssm',
      self.ssm_tpl,
      nheads=self.ssm_nheads,
      dim=self.ssm_dim,
      l_max=self.ssm_l_max,
      decode_num_samples=self.decode_num_samples,
      hippo_type=self.ssm_hippo_type,
      step_size=self.ssm_step_size,
    )

  def _mixed(self, x: jax.Array, ssm: Callable[[jax.Array], jax.Array]):
    """Returns what the residual branch adds; `ssm` computes the model."""
    return ssm(x)

  def _within(self, mask, segment_pos, probs):
    del mask, segment_pos
    probs.self_atten = None
    return lambda x: self._mixed(x, self.ssm)

  def _init_self_attention(self, batch_size: int, max_length: int):
    del max_length
    self.ssm.init_states(batch_size)

  def _layers_with_states(self) -> Sequence[base_layer.BaseLayer]:
    return [self.ssm]

  def decoding_sequence_length(self) -> int:
    """Returns the maximum number of decoded positions."""
    return self.ssm_l_max

  def _self_attention_step(self, x, atten_mask, time_step, segment_pos):
    del atten_mask, time_step, segment_pos

    def steps(x):
      each = [self.ssm.extend_step(x[:, i]) for i in range(x.shape[1])]
      return jnp.stack(each, axis=1)

    return self._mixed(x, steps)


class SSMGated(SSMTransformer):
  """A gated state space model, https://arxiv.org/abs/2212.10544.

  It has no `tr_fflayer_tpl`: the gate is in its place.

  Attributes:
    gss_fflayer_tpl: the projections.
  """

  gss_fflayer_tpl: Config = sub_config_field(linears.FeedForward)

  def _create_self_attention(self):
    self._create_ssm()
    dims, wide, inner = self.input_dims, 3 * self.input_dims, self.ssm_dim
    gelu, identity = activations.GELU, activations.Identity
    for name, from_dims, to_dims, activation in (
      ('v', dims, wide, gelu),
      ('u', dims, inner, gelu),
      ('uc', inner, dims, identity),
      ('uco', dims, wide, gelu),
      ('o', wide, dims, identity),
    ):
      self.create_child(
        f'gss_ffn_{name}',
        self.gss_fflayer_tpl.clone(),
        input_dims=from_dims,
        output_dims=to_dims,
        activation_tpl=Config(activation),
      )

  def _create_feed_forward(self, tpl: Config):
    del tpl

  def _compute(
    self, inputs, paddings, attend, attend_across, segment_ids=None
  ) -> jax.Array:
    gates = []

    def gated(x):
      gates.append(self.gss_ffn_v(x))
      return attend(x)

    hidden = self._attended(inputs, gated, attend_across)
    hidden = self.gss_ffn_o(self.gss_ffn_uco(hidden) * gates[0])
    return self._as_output(hidden)

  def _mixed(self, x: jax.Array, ssm: Callable[[jax.Array], jax.Array]):
    return self.gss_ffn_uc(ssm(self.gss_ffn_u(x)))
