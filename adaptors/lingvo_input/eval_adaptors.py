"""Lingvo inputs for evaluation: one epoch, each example once over all hosts.

Legend: B examples of a host in a batch, H hosts.
"""

import dataclasses
from typing import Any

from absl import logging

from adaptors.lingvo_input import eval_order, input_adaptor
from adaptors.lingvo_input import generator as generators
from adaptors.lingvo_input.checks import generator_kinds
from pax_compat import errors


class LingvoEvalAdaptor(input_adaptor.LingvoInputAdaptor):
  """Returns every example of a Lingvo input exactly once, over all hosts.

  Every host reads the whole data in the same order and keeps its share: B * H
  successive examples of one shape (the same length bucket) make a global batch,
  of which host h has the h-th B. At the end of the data, incomplete batches
  get padding rows of weight 0; see `eval_order`. So all hosts return equally
  many batches, though some may contain padding rows only.

  At most B examples of each shape are in memory.

  Attributes:
    batch_size: examples of this host in a batch; required.
    reset_for_eval: must be True.

  Raises:
    UserError: the fields do not go together, the leaves have no common batch
      axis, or the input does not end.
  """

  def __post_init__(self):
    super().__post_init__()
    self._num_samples = None

  def _check_batch_size(self):
    if self.is_training:
      raise errors.UserError(
        f'{self._label}: is_training is True; expected False, or a'
        ' LingvoInputAdaptor'
      )
    if self.replay:
      raise errors.UserError(
        f'{self._label}: replay is True; leave it False, as the order is'
        ' always that of the files'
      )
    if not self.reset_for_eval:
      raise errors.UserError(
        f'{self._label}: reset_for_eval is False; expected True, as one'
        ' epoch is read for each evaluation'
      )
    size = self.batch_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
      raise errors.UserError(
        f'{self._label}: batch_size is {size!r}; expected how many'
        ' examples of this host make a batch'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the number of examples of one process in a batch."""
    return params.batch_size

  def _settings(self) -> generators.Settings:
    """Returns how the generator is read: one epoch, the same on all hosts."""
    settings = super()._settings()
    options = {
      **settings.backend.cluster_options,
      'require_sequential_input_order': True,
      # All hosts must see one order, so no thread may overtake another.
      'keeps_order': self.num_infeed_hosts > 1,
    }
    return dataclasses.replace(
      settings,
      params=self._epoch_params(),
      backend=dataclasses.replace(
        settings.backend,
        cluster_options=options,
        infeed_host_index=0,
        num_infeed_hosts=1,
      ),
      short_batches=True,
    )

  def _epoch_params(self) -> Any:
    params = self.input.Copy()
    if 'repeat_count' in params and not generator_kinds.is_tf_data(params):
      params.repeat_count = 1
      params.flush_every_n = 0
      logging.info(
        '%s: one epoch in the order of the files (repeat_count=1 with'
        ' require_sequential_input_order), so file_random_seed and the'
        ' shuffle buffer play no role',
        self._label,
      )
    generator_kinds.check_unpacked(
      self._label, params, do_eval=self.cluster_do_eval
    )
    if generator_kinds.is_permuted(params) and not params.random_seed:
      params.random_seed = 1  # One order for all hosts.
    return params

  def _make_order(self, num_samples: int | None = None) -> eval_order.EvalOrder:
    return eval_order.EvalOrder(
      label=self._label,
      generator=self._generator,
      buckets=self._buckets,
      batch_size=self.batch_size,
      num_hosts=self.num_infeed_hosts,
      host=self.infeed_host_index,
      num_samples=num_samples,
      on_end=self._set_num_samples,
    )

  @property
  def num_samples(self) -> int | None:
    """Real examples of all hosts in an epoch; None before the first ended."""
    return self._num_samples

  def order_digest(self) -> bytes | None:
    """Returns 8 bytes that depend on the data read since the last reset.

    All hosts read everything in the same order, so after each batch they have
    the same digest; if not, their data or its order differs. None for a single
    host.
    """
    return self._current_order().digest()

  def _set_num_samples(self, count: int):
    self._num_samples = count
    expected = getattr(self._generator.params, 'num_samples', 0)
    if expected and expected != count:
      logging.warning(
        '%s: input.num_samples is %d, but the data gave %d examples',
        self._label,
        expected,
        count,
      )


class LingvoLazyEvalAdaptor(LingvoEvalAdaptor):
  """Returns the first `input.num_samples` examples of a Lingvo input once.

  It is a `LingvoEvalAdaptor` for inputs that repeat, and know the number of
  their examples: these are an epoch. Batches have `input.batch_size` examples
  of each host.

  Attributes:
    batch_size: None; the input's is used.

  Raises:
    UserError: as for a `LingvoEvalAdaptor`; or the input has no number of
      examples, or no batch size, or fewer examples than its number.
  """

  def _check_batch_size(self):
    size = getattr(self.input, 'batch_size', None)
    if self.batch_size not in (None, size):
      raise errors.UserError(
        f'{self._label}: batch_size is {self.batch_size}; leave it None,'
        ' and set input.batch_size'
      )
    if not size:
      raise errors.UserError(
        f'{self._label}: input.batch_size is {size!r}; expected how many'
        ' examples of this host make a batch'
      )
    self.batch_size = size
    super()._check_batch_size()
    if not self.num_samples or self.num_samples < 0:
      raise errors.UserError(
        f'{self._label}: input.num_samples is {self.num_samples!r}; expected'
        ' how many examples there are, or a LingvoEvalAdaptor for an input that'
        ' ends by itself'
      )

  @classmethod
  def get_batch_size(cls, params) -> int:
    """Returns the number of examples of one process in a batch."""
    return params.input.batch_size

  @property
  def num_samples(self) -> int:
    """Real examples of all hosts in an epoch."""
    return getattr(self.input, 'num_samples', 0)

  def _settings(self) -> generators.Settings:
    # It ends by the number of examples.
    return dataclasses.replace(super()._settings(), must_end=False)

  def _make_order(self) -> eval_order.EvalOrder:
    return super()._make_order(self.num_samples)
