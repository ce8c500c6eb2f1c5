"""Samplers of the next token: temperature, top-k, top-p, epsilon.

A token is sampled as the argmax of logits plus Gumbel noise times the
temperature, which draws from softmax(logits / temperature):

>>> logits = jnp.log(jnp.array([[0.7, 0.2, 0.1]]))
>>> jnp.isneginf(jnp.log(jax.nn.softmax(top_p_mask_logits(logits, 0.8))))
Array([[False, False,  True]], dtype=bool)

Shapes: B rows, V vocabulary, K candidate tokens.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.config import Config, Configurable, instance_field
from pax_compat.nested_map import NestedMap

# A `gumbel_prng_key` of only this value stands for no key.
DUMMY_PRNG_KEY = 15753


def large_negative_number(dtype: jnp.dtype) -> jax.Array:
  """Returns the logit of a masked token: finite, of probability 0."""
  return jnp.asarray(-0.7 * jnp.finfo(dtype).max, dtype)


def gumbel_noise(keys: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Samples Gumbel noise with one key, or with a key for each row.

  Args:
    keys: a typed key [] or keys [B]; or raw uint32 key data [2] or [B, 2].
    shape: of the noise; its first dimension is B.

  Returns:
    Noise of this shape, float32. A row depends on its own key only.
  """
  if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
    keys = jax.random.wrap_key_data(keys.astype(jnp.uint32))
  if keys.ndim == 0:
    return jax.random.gumbel(keys, shape)
  if keys.shape != (shape[0],):
    raise ValueError(
      f'there are keys {keys.shape} for noise {tuple(shape)}; expected a key'
      ' for each row'
    )
  return jax.vmap(lambda key: jax.random.gumbel(key, shape[1:]))(keys)


def get_top_k(
  logits: jax.Array,
  top_k: int,
  per_example_top_k: jax.Array | None = None,
  top_k_recall_target: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns the `top_k` largest logits and their tokens, both [B, K].

  Args:
    logits: [B, V].
    top_k: K; more than V selects V, and 0 selects all in their order.
    per_example_top_k: [B], at most `top_k`: masks the candidates behind.
    top_k_recall_target: below 1, the faster approximate top-k of TPUs.
  """
  if not top_k:
    return logits, jnp.broadcast_to(jnp.arange(logits.shape[-1]), logits.shape)
  top_k = min(top_k, logits.shape[-1])
  if top_k_recall_target < 1.0:
    values, ids = jax.lax.approx_max_k(
      logits, top_k, recall_target=top_k_recall_target
    )
  else:
    values, ids = jax.lax.top_k(logits, top_k)
  if per_example_top_k is not None:
    kept = jnp.arange(top_k) < per_example_top_k[:, None]
    values = jnp.where(kept, values, large_negative_number(values.dtype))
  return values, ids


def top_p_mask_logits(
  logits: jax.Array,
  p: float | jax.Array,
  logits_sorted_in_descending_order: bool = False,
  logits_sum: jax.Array | None = None,
) -> jax.Array:
  """Masks all but the most likely tokens of a total probability of `p`.

  The token with which the total reaches `p` is kept, also if `p` is 0.

  Args:
    logits: [B, K].
    p: a number, or [B] or [B, 1].
    logits_sorted_in_descending_order: whether the logits are sorted.
    logits_sum: [B, 1], divides the logits to get probabilities, instead of a
      softmax (`global_normalize` of Pax).
  """
  if not isinstance(p, jax.Array) and p >= 1.0:
    return logits
  ranked = (
    logits if logits_sorted_in_descending_order else jnp.sort(logits, axis=-1)
  )
  probs = ranked.astype(jnp.float32)
  if logits_sum is None:
    probs = jax.nn.softmax(probs, axis=-1)
  else:
    probs = probs / logits_sum
  if isinstance(p, jax.Array):
    p = p.reshape(-1, 1)
  threshold = p if logits_sorted_in_descending_order else 1.0 - p
  index = jnp.sum(
    jnp.cumsum(probs, axis=-1) <= threshold, axis=-1, keepdims=True
  )
  index = jnp.minimum(index, logits.shape[-1] - 1)
  cutoff = jnp.take_along_axis(ranked, index, axis=-1)
  return jnp.where(logits < cutoff, large_negative_number(logits.dtype), logits)


def epsilon_mask_logits(logits: jax.Array, epsilon: float) -> jax.Array:
  """Masks tokens [B, V] of a probability below `epsilon`; 0 masks none."""
  if epsilon <= 0:
    return logits
  probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
  return jnp.where(probs < epsilon, large_negative_number(logits.dtype), logits)


def select(indices: jax.Array, items: jax.Array) -> jax.Array:
  """Returns the item of each row [..., K] at its index [...]."""
  return jnp.take_along_axis(items, indices[..., None], axis=-1)[..., 0]


class BaseLogitsSampler(Configurable):
  """Chooses a candidate of each row by its logits."""

  def __call__(
    self,
    prng_key: jax.Array,
    logits: jax.Array,
    ids: jax.Array | None,
    temperature: float | jax.Array,
    decode_loop_state: NestedMap,
  ) -> tuple[jax.Array, NestedMap]:
    """Chooses candidates.

    Args:
      prng_key: a key, or a key of each row.
      logits: [B, K].
      ids: [B, K], the tokens; None for 0, 1, ...
      temperature: a number, or [B, 1].
      decode_loop_state: the state of the decoding loop.

    Returns:
      The index of the candidate of each row, [B]; and updates of the state.
    """
    raise NotImplementedError


class DefaultCategoricalLogitsSampler(BaseLogitsSampler):
  """Samples from softmax(logits / temperature); 0 takes the largest logit."""

  def __call__(self, prng_key, logits, ids, temperature, decode_loop_state):
    del ids, decode_loop_state
    temperature = 0.0 if temperature is None else temperature
    noise = gumbel_noise(prng_key, logits.shape).astype(logits.dtype)
    return jnp.argmax(logits + noise * temperature, axis=-1), NestedMap()


def apply_top_p_given_top_k(
  top_k_logits: jax.Array,
  top_k_indices: jax.Array,
  top_p: float | jax.Array | None = None,
  topk_is_sorted: bool = True,
  logits_sum: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns logits masked by top-p, log-probabilities, and tokens: [B, K].

  Args:
    top_k_logits: [B, K].
    top_k_indices: [B, K], their tokens.
    top_p: see `top_p_mask_logits`; None masks nothing.
    topk_is_sorted: whether the logits are in descending order.
    logits_sum: see `top_p_mask_logits`.
  """
  masked = top_k_logits

  def mask():
    return top_p_mask_logits(
      top_k_logits,
      top_p,
      logits_sorted_in_descending_order=topk_is_sorted,
      logits_sum=logits_sum,
    )

  if isinstance(top_p, jax.Array):
    masked = jax.lax.cond(jnp.any(top_p < 1.0), mask, lambda: top_k_logits)
  elif top_p is not None:
    masked = mask()
  log_probs = jax.nn.log_softmax(top_k_logits.astype(jnp.float32))
  return masked, log_probs, top_k_indices


def apply_top_k_and_top_p(
  logits: jax.Array,
  top_k: int,
  top_p: float | jax.Array | None = None,
  per_example_top_k: jax.Array | None = None,
  global_normalize: bool = False,
  top_k_recall_target: float = 1.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Applies top-k, then top-p; see `apply_top_p_given_top_k` for the result.

  Args:
    logits: [B, V].
    top_k: see `get_top_k`.
    top_p: see `top_p_mask_logits`; None masks nothing.
    per_example_top_k: see `get_top_k`.
    global_normalize: whether probabilities for top-p are the logits divided by
      their sum over the vocabulary, as in Pax.
    top_k_recall_target: see `get_top_k`.
  """
  candidates, ids = get_top_k(
    logits, top_k, per_example_top_k, top_k_recall_target
  )
  total = None
  if global_normalize:
    total = jnp.sum(logits.astype(jnp.float32), axis=-1, keepdims=True)
  return apply_top_p_given_top_k(
    candidates, ids, top_p, topk_is_sorted=bool(top_k), logits_sum=total
  )


def sample_from_top_p_given_top_k(
  top_k_logits: jax.Array,
  top_k_indices: jax.Array,
  prng_key: jax.Array,
  temperature: float | jax.Array,
  top_p: float | jax.Array | None = None,
  topk_is_sorted: bool = True,
  logits_sum: jax.Array | None = None,
  logits_sampler: BaseLogitsSampler | None = None,
  decode_loop_state: NestedMap | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Samples tokens [B]; returns them and their log-probabilities [B].

  For the arguments see `apply_top_p_given_top_k` and `BaseLogitsSampler`.
  """
  masked, log_probs, ids = apply_top_p_given_top_k(
    top_k_logits, top_k_indices, top_p, topk_is_sorted, logits_sum
  )
  sampler = logits_sampler or DefaultCategoricalLogitsSampler()
  index, _ = sampler(prng_key, masked, ids, temperature, decode_loop_state)
  return select(index, ids), select(index, log_probs)


def sample_from_top_k_and_top_p(
  logits: jax.Array,
  prng_key: jax.Array,
  temperature: float | jax.Array,
  top_k: int,
  top_p: float | jax.Array | None = None,
  per_example_top_k: jax.Array | None = None,
  global_normalize: bool = False,
  top_k_recall_target: float = 1.0,
  logits_sampler: BaseLogitsSampler | None = None,
  decode_loop_state: NestedMap | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Samples tokens [B]; returns them and their log-probabilities [B].

  For the arguments see `apply_top_k_and_top_p` and `BaseLogitsSampler`.
  """
  masked, log_probs, ids = apply_top_k_and_top_p(
    logits,
    top_k,
    top_p,
    per_example_top_k,
    global_normalize,
    top_k_recall_target,
  )
  sampler = logits_sampler or DefaultCategoricalLogitsSampler()
  index, _ = sampler(prng_key, masked, ids, temperature, decode_loop_state)
  return select(index, ids), select(index, log_probs)


class BaseNextTokenSampler(Configurable):
  """Chooses the next token of each row.

  `__call__` is (model, logits, temperature, decode_loop_state, *,
  per_example_top_p, per_example_top_k, gumbel_prng_key) -> NestedMap:

  Args:
    model: the network.
    logits: [B, V].
    temperature: a number, or [B, 1].
    decode_loop_state: the state of the decoding loop.
    per_example_top_p: [B, 1], or None.
    per_example_top_k: [B], or None.
    gumbel_prng_key: keys [B].

  Returns:
    `new_ids` [B], int32; `logits` [B, V]; optionally `logprobs_at_new_ids` [B];
    and new values of fields of the state.
  """

  def __call__(
    self,
    model: Any,
    logits: jax.Array,
    temperature: float | jax.Array,
    decode_loop_state: NestedMap,
    per_example_top_p: jax.Array | None = None,
    per_example_top_k: jax.Array | None = None,
    gumbel_prng_key: jax.Array | None = None,
  ) -> NestedMap:
    raise NotImplementedError

  def probabilities(self, logits: jax.Array, temperature: float) -> jax.Array:
    """Returns the probabilities [B, V] with which tokens are chosen.

    Args:
      logits: [B, V].
      temperature: 0 chooses the most likely token.

    Raises:
      UserError: the sampler does not draw from a known distribution.
    """
    del logits, temperature
    raise errors.UserError(
      f'{type(self).__name__} has no method probabilities(logits, temperature),'
      ' which speculative decoding needs'
    )

  def init_decode_loop_state(
    self,
    decode_loop_state: NestedMap,
    model: Any = None,
    batch_size: int | None = None,
    eos_id: Any = None,
  ) -> NestedMap:
    """Returns the loop's first state, to which a sampler may add fields."""
    del model, batch_size, eos_id
    return decode_loop_state

  def post_process_decode_loop_state(
    self, decode_loop_state: NestedMap
  ) -> NestedMap:
    """Returns the loop's last state without fields that are not results."""
    return decode_loop_state

  @classmethod
  def get_extra_kwargs(
    cls, inputs: NestedMap, num_samples: int
  ) -> dict[str, Any]:
    """Returns fields of the sampler that depend on the batch."""
    del inputs, num_samples
    return {}


class DefaultNextTokenSampler(BaseNextTokenSampler):
  """Samples with top-k, then top-p.

  Attributes:
    top_k: samples from the `top_k` most likely tokens; 0 from all, and 1 takes
      the most likely one.
    top_p: samples from the most likely tokens of this total probability; None
      from all.
    epsilon_p: samples from tokens of at least this probability only, if above
      0.
    global_normalize: see `apply_top_k_and_top_p`.
    top_k_recall_target: see `get_top_k`.
    use_top_k_for_logprobs: whether log-probabilities are over the candidates
      instead of the vocabulary.
    logits_sampler: chooses one of the candidates.
  """

  top_k: int = 40
  top_p: float | Any | None = None
  epsilon_p: float = 0.0
  global_normalize: bool = False
  top_k_recall_target: float = 1.0
  use_top_k_for_logprobs: bool = False
  logits_sampler: BaseLogitsSampler | Config = instance_field(
    DefaultCategoricalLogitsSampler
  )

  def __post_init__(self):
    if isinstance(self.logits_sampler, Config):
      self.logits_sampler = self.logits_sampler.Instantiate()

  def __call__(
    self,
    model: Any,
    logits: jax.Array,
    temperature: float | jax.Array,
    decode_loop_state: NestedMap,
    per_example_top_p: jax.Array | None = None,
    per_example_top_k: jax.Array | None = None,
    gumbel_prng_key: jax.Array | None = None,
  ) -> NestedMap:
    given = logits
    top_p = self.top_p if per_example_top_p is None else per_example_top_p
    logits = epsilon_mask_logits(logits, self.epsilon_p)
    is_greedy = not isinstance(temperature, jax.Array) and not temperature
    if self.top_k == 1 or (self.top_k == 0 and is_greedy):
      return NestedMap(
        new_ids=jnp.argmax(logits, axis=-1).astype(jnp.int32), logits=given
      )
    if gumbel_prng_key is None:
      gumbel_prng_key = model.next_prng_key()
    if self.top_k == 0:
      if top_p is not None:
        logits = top_p_mask_logits(logits, top_p)
      ids, updates = self.logits_sampler(
        gumbel_prng_key, logits, None, temperature, decode_loop_state
      )
      return NestedMap(new_ids=ids.astype(jnp.int32), logits=given, **updates)
    masked, log_probs, ids = apply_top_k_and_top_p(
      logits,
      self.top_k,
      top_p,
      per_example_top_k,
      self.global_normalize,
      self.top_k_recall_target,
    )
    index, updates = self.logits_sampler(
      gumbel_prng_key, masked, ids, temperature, decode_loop_state
    )
    result = NestedMap(
      new_ids=select(index, ids).astype(jnp.int32), logits=given, **updates
    )
    if self.use_top_k_for_logprobs:
      result.logprobs_at_new_ids = select(index, log_probs)
    return result

  def probabilities(self, logits: jax.Array, temperature: float) -> jax.Array:
    if type(self.logits_sampler) is not DefaultCategoricalLogitsSampler:
      return super().probabilities(logits, temperature)
    logits = epsilon_mask_logits(logits, self.epsilon_p)
    size = logits.shape[-1]
    if self.top_k == 1 or not temperature:
      return jax.nn.one_hot(jnp.argmax(logits, axis=-1), size)
    masked, _, ids = apply_top_k_and_top_p(
      logits,
      self.top_k,
      self.top_p,
      global_normalize=self.global_normalize and self.top_k > 0,
      top_k_recall_target=self.top_k_recall_target,
    )
    probs = jax.nn.softmax(masked.astype(jnp.float32) / temperature, axis=-1)
    if not self.top_k:
      return probs
    rows = jnp.arange(len(logits))[:, None]
    return jnp.zeros(logits.shape, jnp.float32).at[rows, ids].set(probs)
