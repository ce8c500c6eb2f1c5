"""Batch specs: shapes and dtypes of batches, for building a model."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap


def of_batch(
  batch: NestedMap,
  is_host_field: Callable[[str, np.ndarray], bool],
  *,
  rows: int | None = None,
) -> NestedMap:
  """Returns the specs of a batch, without its host fields.

  Args:
    batch: arrays [B, ...], or other leaves with a shape and a dtype.
    is_host_field: see `BaseInput.is_host_field`.
    rows: number of rows; None for B.
  """
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape if rows is None else (rows, *x.shape[1:]), x.dtype
    ),
    host_fields.for_devices(batch, is_host_field),
  )


class BaseInputSpecsProvider(config_lib.Configurable):
  """Provides the specs of the training batches of an experiment."""

  def get_input_specs(self) -> NestedMap:
    """Returns a `jax.ShapeDtypeStruct` for each field of a process's batch.

    Host fields are left out.
    """
    raise NotImplementedError(type(self).__name__)


class DatasetInputSpecsProvider(BaseInputSpecsProvider):
  """Gets the specs from an input; reads a batch only if necessary.

  Attributes:
    input_p: config of the input, which is built only for this, then closed.
  """

  input_p: config_lib.Config = config_lib.REQUIRED

  def get_input_specs(self) -> NestedMap:
    """Returns the specs of the input's batches.

    Raises:
      UserError: the input has no batch.
    """
    data = self.input_p.Instantiate()
    try:
      return data.batch_specs() or self._of_first_batch(data)
    finally:
      data.close()

  def _of_first_batch(self, data: Any) -> NestedMap:
    logging.info(
      '%s %r has no batch_specs(): reading one batch to get its shapes',
      type(data).__name__,
      data.name,
    )
    batch = data.peek_padded()
    if batch is None:
      raise errors.UserError(f'the dataset {data.name!r} has no batch')
    return data.specs_of(batch)
