"""One step of sampling, which both loops of it share.

It chooses a token of each row and records it. The loops differ in how the model
is read: `sample_decode` reads aligned prefixes of our networks,
`pax_sampling_loop` calls the functions of Pax's code.

Shapes: B rows, N samples of a row, R = B * N, T positions, V vocabulary. With
guidance, R = B * 2 * N: the N samples of a row, then their rows without the
condition.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.decoding import decoder_utils
from pax_compat.decoding.aligned_steps import NO_LOGPROB
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

MAX_NUM_PER_TOKEN_LOGPROBS = 5


class SampleInputs(flax.struct.PyTreeNode):
  """What each example may set, as fields of the batch of the same names.

  Attributes:
    temperature: [B] or [B, N].
    per_example_max_decode_steps: [B], at most `max_decode_steps`.
    per_example_top_p: [B].
    per_example_top_k: [B], at most `k`.
    eos_id: [B, E], a stop sequence padded with 0 at the left, which 0 is any
      token; or several, [B, S, E]. It replaces the `eos_id` of the settings.
    gumbel_prng_key: [B] or [B, 2], key data; all `DUMMY_PRNG_KEY` for none.
    cf_guidance_scale: [B] or [B, N], in place of that of the settings.
    enforce_sample_constraints: [B], passed to the constraint.
    num_per_token_logprobs: [B], number of most likely tokens that the result
      has, at most 5.
    return_entropy_score: whether the result has the entropy at each token.
  """

  temperature: jax.Array | None = None
  per_example_max_decode_steps: jax.Array | None = None
  per_example_top_p: jax.Array | None = None
  per_example_top_k: jax.Array | None = None
  eos_id: jax.Array | None = None
  gumbel_prng_key: jax.Array | None = None
  cf_guidance_scale: jax.Array | None = None
  enforce_sample_constraints: jax.Array | None = None
  num_per_token_logprobs: jax.Array | None = None
  return_entropy_score: bool = flax.struct.field(
    pytree_node=False, default=False
  )

  def check_effect(
    self,
    settings: SampleDecoderHParams,
    sampler: token_samplers.BaseNextTokenSampler,
    *,
    is_guided: bool,
  ):
    """Raises a UserError for a field that the settings leave without effect."""
    if self.per_example_top_k is not None:
      settings.check(
        type(sampler) is not token_samplers.DefaultNextTokenSampler
        or sampler.top_k > 0,
        'k is 0, but the batch has per_example_top_k, which is at most k;'
        ' expected a k above 0',
      )
    if self.cf_guidance_scale is not None:
      settings.check(
        is_guided,
        'cf_guidance_scale is None, but the batch has one; expected a number,'
        ' so that prefixes without their condition are read, too',
      )
    if self.enforce_sample_constraints is not None:
      settings.check(
        settings.sample_constraint is not None,
        'sample_constraint is None, but the batch has'
        ' enforce_sample_constraints; expected both or neither',
      )

  @classmethod
  def of(cls, batch: NestedMap) -> 'SampleInputs':
    """Returns the fields of a batch."""
    names = set(cls.__dataclass_fields__) - {'return_entropy_score'}
    return cls(
      **{name: batch.get(name) for name in names},
      return_entropy_score='return_entropy_score' in batch,
    )


def check_no_inputs(batch: NestedMap, what: str):
  """Raises a UserError if examples set something themselves.

  Args:
    batch: the batch; see `SampleInputs`.
    what: names what does not support it.
  """
  for name in SampleInputs.__dataclass_fields__:
    if batch.get(name) is not None:
      raise errors.UserError(
        f'the batch has the field {name}, which is not supported with {what}'
      )


class Rows(flax.struct.PyTreeNode):
  """Settings of the rows of a loop.

  Attributes:
    temperature: a number or [B * N, 1].
    top_p: a number, [B * N, 1] or None.
    top_k: a number, [B * N] or None.
    max_steps: numbers of tokens after the prefix: a number, [R] or None.
    stop: stop sequences [R, E] or [R, S, E], or None.
    scale: of guidance, [B, N, 1]: logits without the condition plus `scale`
      times the difference; None for none.
    num_candidates: [R], or None.
    enforced: of the constraint, [R], or None.
    has_entropy: whether the entropy at each token is recorded.
  """

  temperature: Any
  top_p: Any
  top_k: Any
  max_steps: Any
  stop: jax.Array | None
  scale: jax.Array | None
  num_candidates: jax.Array | None
  enforced: jax.Array | None
  has_entropy: bool = flax.struct.field(pytree_node=False)

  @classmethod
  def of(
    cls,
    inputs: SampleInputs,
    settings: SampleDecoderHParams,
    rows: int,
    max_steps: int | None,
    *,
    is_guided: bool,
  ) -> 'Rows':
    """Returns the settings of each sample.

    Args:
      inputs: what examples set themselves.
      settings: what is set for all.
      rows: B.
      max_steps: number of tokens after the prefix at most; None for no limit.
      is_guided: whether there are rows without the condition.

    Raises:
      UserError: a field of the inputs has another shape.
    """
    num = settings.num_samples

    def given(name: str, *, of_both: bool = False) -> Any:
      value = _of_samples(name, getattr(inputs, name), rows, num)
      return both(value, num) if of_both and is_guided else value

    def column(value: Any) -> Any:
      return value[:, None] if _is_array(value) else value

    temperature = given('temperature')
    if temperature is None:
      temperature = settings.temperature
    scale = None
    if is_guided:
      scale = given('cf_guidance_scale')
      if scale is None:
        scale = jnp.asarray(settings.cf_guidance_scale, jnp.float32)
      else:
        scale = split_batch_dim(scale, 0, num)
      scale = jnp.broadcast_to(scale, (rows, num))[..., None]
    limits = given('per_example_max_decode_steps', of_both=True)
    if limits is None:
      limits = max_steps
    elif max_steps is not None:
      limits = jnp.minimum(limits, max_steps)
    return cls(
      temperature=column(temperature),
      top_p=column(given('per_example_top_p')),
      top_k=given('per_example_top_k'),
      max_steps=limits,
      stop=given('eos_id', of_both=True),
      scale=scale,
      num_candidates=given('num_per_token_logprobs', of_both=True),
      enforced=given('enforce_sample_constraints', of_both=True),
      has_entropy=inputs.return_entropy_score,
    )


def _is_array(value: Any) -> bool:
  """Whether a value is neither None nor a number."""
  return value is not None and jnp.ndim(value) > 0


def _of_samples(name: str, value: Any, rows: int, num_samples: int) -> Any:
  """Returns a field of the inputs for each sample, [B * N, ...].

  Numbers and None are returned as they are.
  """
  if not _is_array(value):
    return value
  value = jnp.asarray(value)
  shape = value.shape
  if shape == (rows, num_samples) and name in (
    'temperature',
    'cf_guidance_scale',
  ):
    return value.ravel()
  if shape[:1] != (rows,) or (len(shape) != 1 and name != 'eos_id'):
    raise errors.UserError(
      f'{name} has the shape {shape}; expected a value for each of {rows}'
      ' examples'
    )
  return jnp.repeat(value, num_samples, axis=0)


class Sampled(flax.struct.PyTreeNode):
  """What a step has chosen.

  Attributes:
    ids: [R], the tokens.
    logits: [R, V], by which they were chosen.
    output: of the sampler, for the B * N rows with the condition.
  """

  ids: jax.Array
  logits: jax.Array
  output: NestedMap


class SampleSteps:
  """Steps of a sampling loop, whose state is a NestedMap."""

  def __init__(
    self,
    model: base_layer.BaseLayer,
    sampler: token_samplers.BaseNextTokenSampler,
    settings: SampleDecoderHParams,
    rows: Rows,
  ):
    """Takes what is decoded.

    Args:
      model: passed to the sampler.
      sampler: of the next token.
      settings: what is set for all rows.
      rows: the settings of each.
    """
    self._model = model
    self._sampler = sampler
    self._settings = settings
    self._rows = rows

  def initial_state(self, val: NestedMap) -> NestedMap:
    """Returns `val` with the fields that the steps update.

    Args:
      val: the state of the loop, with `output_ids` [R, T].
    """
    settings, rows, ids = self._settings, self._rows, val.output_ids
    val = NestedMap(val, logprobs=jnp.full(ids.shape, NO_LOGPROB, jnp.float32))
    if settings.optimize_eos:
      val.eos_ids = jnp.zeros_like(ids)
      val.eos_logprobs = jnp.full_like(val.logprobs, NO_LOGPROB)
    if rows.has_entropy:
      val.entropy = jnp.zeros_like(val.logprobs)
    if rows.num_candidates is not None:
      shape = (*ids.shape, MAX_NUM_PER_TOKEN_LOGPROBS)
      val.top_candidate_ids = jnp.zeros(shape, jnp.int32)
      val.top_candidate_logprobs = jnp.ones(shape, jnp.float32)
    eos = settings.eos_ids if rows.stop is None else rows.stop
    return self._sampler.init_decode_loop_state(val, self._model, len(ids), eos)

  def sample(
    self,
    model: base_layer.BaseLayer,
    val: NestedMap,
    logits: jax.Array,
    keys: jax.Array | None,
    positions: jax.Array,
  ) -> Sampled:
    """Chooses the tokens of a step; updates the sampler's fields of `val`.

    Args:
      model: passed to the sampler.
      val: the state of the loop.
      logits: [R, V].
      keys: typed keys [B * N]; None for those of the model.
      positions: folded into the keys, [R] or [].
    """
    rows, num = self._rows, self._settings.num_samples
    if rows.scale is not None:
      grouped = split_batch_dim(logits, 0, 2 * num)
      with_condition, without = grouped[:, :num], grouped[:, num:]
      guided = without + rows.scale * (with_condition - without)
      logits = guided.reshape(-1, logits.shape[-1])
      if positions.ndim:
        positions = split_batch_dim(positions, 0, 2 * num)[:, :num].ravel()
    if keys is not None:
      positions = jnp.broadcast_to(positions, keys.shape)
      keys = sample_streams.step_keys(keys, positions)
    output = self._sampler(
      model,
      self._without_eos(logits),
      rows.temperature,
      val,
      per_example_top_p=rows.top_p,
      per_example_top_k=rows.top_k,
      gumbel_prng_key=keys,
    )
    for name in output.keys() & val.keys():
      val[name] = output[name]
    return Sampled(self._of_all(output.new_ids), self._of_all(logits), output)

  def _of_all(self, x: jax.Array) -> jax.Array:
    """Returns rows with the condition for those without it, too, [R, ...]."""
    if self._rows.scale is None:
      return x
    return both(x, self._settings.num_samples)

  def _without_eos(self, logits: jax.Array) -> jax.Array:
    """Returns the logits, with `optimize_eos` without those of an end."""
    if not self._settings.optimize_eos:
      return logits
    masked = token_samplers.large_negative_number(logits.dtype)
    return logits.at[:, jnp.asarray(self._settings.eos_ids)].set(masked)

  def record(
    self, val: NestedMap, sampled: Sampled, ids: jax.Array, position: jax.Array
  ):
    """Writes log-probabilities, and what else is asked for, to `val`.

    Args:
      val: the state of the loop; `done` of before the step.
      sampled: what the step has chosen.
      ids: [R], the tokens; other than the chosen ones within prefixes.
      position: [], theirs.
    """
    rows, logits = self._rows, sampled.logits.astype(jnp.float32)
    if (
      self._settings.use_top_k_for_logprobs
      and 'logprobs_at_new_ids' in sampled.output
    ):
      found = self._of_all(sampled.output.logprobs_at_new_ids)
    else:
      found = decoder_utils.token_logprobs(logits, ids)
    found = jnp.where(val.done, NO_LOGPROB, found)
    val.logprobs = val.logprobs.at[:, position].set(found)
    if self._settings.optimize_eos:
      eos = jnp.asarray(self._settings.eos_ids, jnp.int32)
      best = eos[jnp.argmax(logits[:, eos], axis=-1)]
      val.eos_ids = val.eos_ids.at[:, position].set(best)
      val.eos_logprobs = val.eos_logprobs.at[:, position].set(
        decoder_utils.token_logprobs(logits, best)
      )
    logprobs = jax.nn.log_softmax(logits)
    if rows.has_entropy:
      entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
      val.entropy = val.entropy.at[:, position].set(entropy)
    if rows.num_candidates is not None:
      index = val.step - val.start_step
      values, tokens = _candidates(logprobs, rows.num_candidates)
      val.top_candidate_logprobs = val.top_candidate_logprobs.at[:, index].set(
        values
      )
      val.top_candidate_ids = val.top_candidate_ids.at[:, index].set(tokens)

  def has_eos(self, val: NestedMap, ids: jax.Array) -> jax.Array:
    """Returns whether the tokens `ids` [R] behind `val.step` are an end."""
    if self._settings.optimize_eos:
      return jnp.zeros(ids.shape, bool)
    stop = self._rows.stop
    if stop is None:
      return decoder_utils.has_any_eos(ids, self._settings.eos_ids)
    stop = stop if stop.ndim == 3 else stop[:, None]
    ends = jax.vmap(
      lambda sequences: decoder_utils.end_with_sequences(
        sequences, val.output_ids, val.step + 1
      ),
      in_axes=1,
      out_axes=1,
    )(stop)
    # A sequence of padding only is none.
    return jnp.any(ends & jnp.any(stop != 0, axis=-1), axis=1)

  def results(self, result: NestedMap) -> NestedMap:
    """Returns [B, N, ...] of the last state, without the working fields."""
    working = ('start_step', 'step', 'done', 'has_eos', 'segment_pos')
    result = NestedMap({k: v for k, v in result.items() if k not in working})
    result = self._sampler.post_process_decode_loop_state(result)
    return jax.tree.map(self.split, result)

  def split(self, x: jax.Array) -> jax.Array:
    """Returns `x` [R, ...] as [B, N, ...], with the condition only."""
    num = self._settings.num_samples
    groups = num if self._rows.scale is None else 2 * num
    return split_batch_dim(x, 0, groups)[:, :num]


def split_batch_dim(
  x: jax.Array, batch_dim: int, num_samples: int
) -> jax.Array:
  """Returns `x` with the dimension `batch_dim` [R] as two, [B, N]."""
  shape = x.shape
  return x.reshape(*shape[:batch_dim], -1, num_samples, *shape[batch_dim + 1 :])


def both(x: Any, num_samples: int) -> Any:
  """Returns rows [B * N, ...] for those without the condition, too.

  Numbers and None are returned as they are.
  """
  if not _is_array(x):
    return x
  grouped = split_batch_dim(x, 0, num_samples)
  return jnp.concatenate([grouped, grouped], axis=1).reshape(-1, *x.shape[1:])


def _candidates(
  logprobs: jax.Array, number: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the most likely tokens and their log-probabilities, [R, 5].

  Args:
    logprobs: [R, V].
    number: [R], of tokens; the others are 0, with the log-probability 1.
  """
  most = min(MAX_NUM_PER_TOKEN_LOGPROBS, logprobs.shape[1])
  values, ids = jax.lax.top_k(logprobs, most)
  missing = ((0, 0), (0, MAX_NUM_PER_TOKEN_LOGPROBS - most))
  values, ids = jnp.pad(values, missing), jnp.pad(ids, missing)
  kept = jnp.arange(MAX_NUM_PER_TOKEN_LOGPROBS) < jnp.minimum(
    number[:, None], most
  )
  return jnp.where(kept, values, 1.0), jnp.where(kept, ids, 0)
