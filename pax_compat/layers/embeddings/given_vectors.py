"""What stands in the place of an embedding where there are no tokens.

Shapes: D dims.
"""

import jax

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED


class GivenVectors(base_layer.BaseLayer):
  """An embedding of what is embedded already: inputs [..., D] as they are.

  In the place of a model's embedding it makes the model take vectors instead
  of tokens.

  Attributes:
    input_dims: D.
    num_classes: of what the model predicts; it has no meaning here.
  """

  input_dims: int = REQUIRED
  num_classes: int | None = None

  def __call__(self, vectors: jax.Array) -> jax.Array:
    """Returns `vectors` [..., D]."""
    return self.emb_lookup(vectors)

  def emb_lookup(self, vectors: jax.Array) -> jax.Array:
    """Returns `vectors` [..., D].

    Raises:
      UserError: they have another number of dims.
    """
    if vectors.shape[-1:] != (self.input_dims,):
      raise errors.UserError(
        f'GivenVectors: inputs of shape {list(vectors.shape)}; expected vectors'
        f' of {self.input_dims} dims (input_dims)'
      )
    return vectors.astype(self.compute_dtype)
