"""Wrappers of a layer with any number of arguments: they repeat it, map it over
stacked arguments, mix its weights, or rematerialise it.

A config inside the wrapped layer must not be used outside of it too, since flax
builds the layers inside a lifted transformation separately.

Shapes: C dims of the condition, E experts.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS, WeightHParams
from pax_compat.config import REQUIRED, Config
from pax_compat.layer_core import child_layers
from pax_compat.layer_core.summaries import SummaryType
from pax_compat.layers import checkpoint_policy as policies
from pax_compat.layers.checkpoint_policy import AutodiffCheckpointType
from pax_compat.layers.graph.containers import as_tuple
from pax_compat.layers.repeats import Repeat
from pax_compat.layers.template_fields import refuse_mappings


class _Wrapper(base_layer.BaseLayer):
  """Base of layers that call a layer under a lifted flax transformation.

  Attributes:
    body: the layer.
  """

  body: Config = REQUIRED

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    child_layers.keep_apart(self, 'main', self.body)
    self.create_child('main', self.body)


class OneArgument(base_layer.BaseLayer):
  """A layer that takes its arguments, and returns its outputs, as one tuple.

  Attributes:
    body: the layer.
  """

  body: Config = REQUIRED

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self.create_child('main', self.body)

  def __call__(self, args: tuple) -> tuple:
    """Returns the outputs of the body for `*args` as a tuple."""
    return as_tuple(self.main(*args))


class RepeatAll(base_layer.BaseLayer):
  """Applies a layer repeatedly to its own outputs.

  All arguments are carried over; `repeats.Repeat` carries the first only.

  Attributes:
    body: the layer; its outputs have the number and shapes of its arguments.
    x_times: number of repeats, each with separate weights.
    checkpoint_policy: see `repeats.Repeat`.
  """

  body: Config = REQUIRED
  x_times: int = REQUIRED
  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    self.create_child(
      'repeat',
      Repeat.config(
        sub_tpl=OneArgument.config(body=self.body),
        x_times=self.x_times,
        checkpoint_policy=self.checkpoint_policy,
      ),
    )

  def __call__(self, *args) -> Any:
    """Returns the last outputs: a tuple, or the only one."""
    outputs = self.repeat(args)
    return outputs[0] if len(outputs) == 1 else outputs


class ParallelRepeat(_Wrapper):
  """Applies a layer to stacked arguments, with separate weights for each.

  Attributes:
    x_times: the size of the stacked dimension.
  """

  x_times: int = REQUIRED

  def __call__(self, *args) -> Any:
    """Returns the stacked outputs.

    Args:
      *args: arrays [x_times, ...], or None.
    """
    return _stacked(self.x_times, in_axes=0)(self.main, *args)


class SoftCond(_Wrapper):
  """A layer whose weights are a mixture of experts' weights, per batch.

  The mixture weights are computed from the mean of the first argument; see
  https://arxiv.org/abs/1904.04971.

  Attributes:
    num_experts: E.
    cond_dim: C, the last dimension of the first argument.
    nonzeros_mean: whether the mean is over nonzero elements only.
  """

  num_experts: int = REQUIRED
  cond_dim: int = REQUIRED
  nonzeros_mean: bool = False

  def setup(self):
    super().setup()
    self.create_variable('w', WeightHParams([self.cond_dim, self.num_experts]))

  def __call__(self, inputs: jax.Array, *args) -> Any:
    """Returns the outputs of the layer with mixed weights.

    Args:
      inputs: [..., C].
      *args: further arguments of the layer.
    """
    shares = self._shares(inputs)
    self.add_summary('soft_cond', shares, SummaryType.HISTOGRAM)
    if self.is_initializing():
      outputs = _stacked(self.num_experts, in_axes=None)(
        self.main, inputs, *args
      )
      return jax.tree.map(lambda x: x[0], outputs)

    def mixed(weights):
      return jax.tree.map(
        lambda w: jnp.einsum('e,e...->...', shares.astype(w.dtype), w), weights
      )

    call = nn.map_variables(_call, PARAMS, trans_in_fn=mixed)
    return call(self.main, inputs, *args)

  def _shares(self, inputs: jax.Array) -> jax.Array:
    """Returns the mixture weights, [E]."""
    rows = inputs.reshape([-1, self.cond_dim])
    count = rows.shape[0]
    if self.nonzeros_mean:
      count = jnp.count_nonzero(rows, axis=0) + 1e-10
    mean = jnp.sum(rows, axis=0) / count
    return jax.nn.sigmoid(mean @ self.theta.w)


class Rematerialize(_Wrapper):
  """Recomputes a layer in the backward pass, to save memory.

  Attributes:
    checkpoint_policy: which values are saved nevertheless; an
      `AutodiffCheckpointType` or its name.
  """

  checkpoint_policy: str = AutodiffCheckpointType.SAVE_NOTHING

  def __call__(self, *args) -> Any:
    """Returns the outputs of the layer."""
    policy = policies.custom_policy(
      self.checkpoint_policy, where='Rematerialize.checkpoint_policy'
    )
    return nn.remat(_call, policy=policy)(self.main, *args)


def _call(layer: base_layer.BaseLayer, *args) -> Any:
  return layer(*args)


def _stacked(x_times: int, in_axes: int | None):
  """Returns `_call` with all variables stacked along a new axis."""
  return nn.vmap(
    _call,
    variable_axes={True: 0},
    split_rngs={True: True},
    in_axes=in_axes,
    axis_size=x_times,
    metadata_params={'x_times': x_times, 'mesh_axis': None},
  )
