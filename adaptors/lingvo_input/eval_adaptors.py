"""Lingvo inputs for evaluation: one epoch, each example once over all hosts.

Legend: B examples of a host in a batch, H hosts.
"""

import dataclasses
from typing import Any

from absl import logging

from adaptors.lingvo_input import eval_order, input_adaptor
from adaptors.lingvo_input import generator as generators
from adaptors.lingvo_input.checks import (
  generator_kinds,
  params_checks,
  reader_params,
)
from pax_compat import errors


class LingvoEvalAdaptor(input_adaptor.LingvoInputAdaptor):
  """Returns every example of a Lingvo input exactly once, over all hosts.

  Every host reads the whole data in the same order and keeps its share: B * H
  successive examples of one shape (the same length bucket) make a global batch,
  of which host h has the h-th B. At the end of the data, incomplete batches
  get padding rows of weight 0; see `eval_order`. So all hosts return equally
  many batches, though some may contain padding rows only.

  At most B examples of each shape are in memory.

  Of an input without an end, an evaluation reads the first examples, the same
  each time: as many as Lingvo does, by `eval_steps` or `eval_samples`. Whether
  it ends is found out when it is made.

  Attributes:
    batch_size: examples of this host in a batch; required.
    reset_for_eval: must be True.
    eval_steps: number of batches of each host, of Lingvo's size, that an
      evaluation reads of data without an end: Lingvo's `eval_steps_per_loop`. A
      `repeat_count` of -1 counts as no end. It goes before `eval_samples`.
    eval_samples: number of examples of all hosts that an evaluation reads of
      data that never ends, or is not known to end: Lingvo's
      `samples_per_summary`. A `repeat_count` of -1 is read once.

  Raises:
    UserError: the fields do not go together, the leaves have no common batch
      axis, or the input does not end and no number is set.
  """

  eval_steps: int | None = None
  eval_samples: int | None = None

  def __post_init__(self):
    super().__post_init__()
    self._num_samples = None
    # Of data without an end; None for all of the data.
    self._limit = self._examples_to_read()

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

  def _examples_to_read(self) -> int | None:
    """Returns the number of examples of an evaluation; None for all.

    Raises:
      UserError: the data never ends, and no number is set.
    """
    if self.eval_steps and _is_repeated(self.input):
      return self._announced_limit('its repeat_count is -1')
    is_limited = self.eval_steps or self.eval_samples is not None
    if not is_limited or _reads_stock_files(self.input):
      return None  # The first evaluation finds out if it never ends.
    ends = self._generator.ends()
    if ends or not (self.eval_steps or self.eval_samples):
      self._generator.check_end(ends)
      return None
    if ends is None:
      return self._announced_limit('it is not known to end', logging.WARNING)
    return self._announced_limit('it never ends')

  def _announced_limit(self, reason: str, level: int = logging.INFO) -> int:
    """Returns how many examples Lingvo reads; logs it with the reason."""
    sizes = getattr(self.input, 'bucket_batch_limit', None)
    # Lingvo reads whole batches.
    largest = max(sizes) if sizes else self.batch_size
    if self.eval_steps:
      field = f'eval_steps_per_loop is {self.eval_steps}'
      limit = self.eval_steps * largest * self.num_infeed_hosts
    else:
      field = f'eval.samples_per_summary is {self.eval_samples}'
      limit = self.eval_samples
      if limit != getattr(self.input, 'num_samples', 0):
        limit = -(-limit // largest) * largest
    logging.log(
      level,
      '%s: an evaluation reads its first %d examples, or all if there are'
      ' fewer, as %s and Lingvo reads as many (%s)',
      self._label,
      limit,
      reason,
      field,
    )
    settings = dataclasses.replace(self._generator.settings, must_end=False)
    self._generator.settings = settings
    return limit

  def _epoch_params(self) -> Any:
    params = self.input.Copy()
    if 'repeat_count' in params and not generator_kinds.is_tf_data(params):
      params.repeat_count = 1
      params.flush_every_n = 0
      logging.debug(
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
      max_samples=self._limit,
      label=self._label,
      generator=self._generator,
      buckets=self._buckets,
      lengths=self._lengths,
      watch=self._watch,
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
    if self._limit is not None:
      return
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


def _is_repeated(params: Any) -> bool:
  """Returns whether records of files are read without an end, as in Lingvo."""
  reads_files = 'repeat_count' in params
  if not reads_files or generator_kinds.is_tf_data(params):
    return False
  return params.repeat_count == -1


def _reads_stock_files(params: Any) -> bool:
  """Returns whether a class of Lingvo reads files, which have an end."""
  is_stock = params.cls.__module__.startswith('lingvo.')
  if not is_stock or 'repeat_count' not in params:
    return False
  if generator_kinds.is_tf_data(params):
    return False
  entries = [e for _, found in params_checks.readers(params) for e in found]
  forms = {params_checks.split_type(entry)[0] for entry in entries}
  return bool(entries) and reader_params.COUNTER not in forms
