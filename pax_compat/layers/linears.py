"""Linear and feed-forward layers.

Shapes: I input dims, O output dims.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED, Config, sub_config_field
from pax_compat.layers import activations


class Linear(base_layer.BaseLayer):
  """A product with a matrix, without a bias.

  Attributes:
    input_dims: I.
    output_dims: O.
  """

  input_dims: int = REQUIRED
  output_dims: int = REQUIRED

  def setup(self):
    self.create_variable(
      'w',
      WeightHParams(
        [self.input_dims, self.output_dims],
        tensor_split_dims_mapping=self.weight_split_dims_mapping,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    return jnp.einsum('...i,io->...o', inputs, self.theta.w)


class Bias(base_layer.BaseLayer):
  """Adds a vector.

  Attributes:
    dims: O.
    bias_init: its first value in every element.
  """

  dims: int = REQUIRED
  bias_init: float = 0.0

  def setup(self):
    self.create_variable(
      'b',
      WeightHParams(
        [self.dims],
        WeightInit.Constant(self.bias_init),
        tensor_split_dims_mapping=self.weight_split_dims_mapping,
      ),
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., O] plus the bias."""
    return inputs + self.theta.b


class FeedForward(base_layer.BaseLayer):
  """A linear layer, a bias and an activation.

  Attributes:
    input_dims: I.
    output_dims: O.
    has_bias: whether there is a bias.
    bias_init: the bias's first value.
    linear_tpl: the linear layer.
    bias_tpl: the bias.
    activation_tpl: the activation.
  """

  input_dims: int = REQUIRED
  output_dims: int = REQUIRED
  has_bias: bool = True
  bias_init: float = 0.0
  linear_tpl: Config = sub_config_field(Linear)
  bias_tpl: Config = sub_config_field(Bias)
  activation_tpl: Config = sub_config_field(activations.ReLU)

  def setup(self):
    split = self.weight_split_dims_mapping
    self.create_child(
      'linear',
      self.linear_tpl.clone().set(
        input_dims=self.input_dims,
        output_dims=self.output_dims,
        weight_split_dims_mapping=split,
      ),
    )
    if self.has_bias:
      self.create_child(
        'bias',
        self.bias_tpl.clone().set(
          dims=self.output_dims,
          bias_init=self.bias_init,
          weight_split_dims_mapping=None if split is None else split[-1:],
        ),
      )
    self.create_child('activation', self.activation_tpl)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    projected = self.linear(inputs)
    if self.has_bias:
      projected = self.bias(projected)
    return self.activation(projected)
