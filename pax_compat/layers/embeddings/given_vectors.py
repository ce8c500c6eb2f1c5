"""An identity in place of an embedding, for inputs that are vectors.

Shapes: D dims.
"""

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED


class GivenVectors(base_layer.BaseLayer):
  """Returns inputs [..., D] unchanged.

  In place of a model's embedding it makes the model take vectors instead of
  tokens.

  Attributes:
    input_dims: D.
    num_classes: ignored; models set it on their embedding.
  """

  input_dims: int = REQUIRED
  num_classes: int | None = None

  def __call__(self, vectors: jax.Array) -> jax.Array:
    """Returns `vectors` [..., D]."""
    return self.emb_lookup(vectors)

  def emb_lookup(self, vectors: jax.Array) -> jax.Array:
    """Returns `vectors` [..., D].

    Raises:
      UserError: the last dimension is not D.
    """
    if vectors.shape[-1:] != (self.input_dims,):
      raise errors.UserError(
        f'GivenVectors: inputs of shape {list(vectors.shape)}; expected vectors'
        f' of {self.input_dims} dims (input_dims)'
      )
    return vectors.astype(self.compute_dtype)
