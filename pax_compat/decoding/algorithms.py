"""The decoding algorithm that belongs to the settings of a decoder.

Shapes: B rows, P prefix, N samples or hypotheses.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  DecoderHParams,
  GreedyDecoderHParams,
  PrunedBeamSearchHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding import (
  beam_search,
  greedy,
  prefixes,
  pruned_beam_search,
  sample_decode,
  sample_steps,
  speculative,
)
from pax_compat.decoding.cached_network import (
  CachedNetwork,
  ExtendStepFn,
  InitStatesFn,
)
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.lazy_prefix_network import LazyPrefixNetwork
from pax_compat.decoding.prefixes import Prefix
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams
from pax_compat.sampling.token_samplers import BaseNextTokenSampler

ALGORITHMS = (GreedyDecoderHParams, SampleDecoderHParams, BeamSearchHParams)


def check_settings(where: str, settings: Any, vocab_size: int | None):
  """Raises a UserError unless these settings select and suit an algorithm.

  Args:
    where: the path of the field of the settings.
    settings: of a decoder.
    vocab_size: the number of tokens; None if unknown.
  """
  if not isinstance(settings, DecoderHParams):
    raise errors.UserError(
      f'{where} is {settings!r}; expected the settings of a decoder, such as'
      ' GreedyDecoderHParams(seqlen=64)'
    )
  if not isinstance(settings, ALGORITHMS):
    names = ', '.join(kind.__name__ for kind in ALGORITHMS)
    raise errors.UserError(
      f'{where} is a {type(settings).__name__}, which does not select a'
      f' decoding algorithm; expected one of {names}'
    )
  try:
    settings.check_complete()
    if vocab_size is not None:
      settings.check_vocabulary(vocab_size)
  except errors.UserError as error:
    raise errors.UserError(f'{where}: {error}') from None


def decode(
  network: base_layer.BaseLayer,
  settings: DecoderHParams,
  prefix: Prefix,
  *,
  init_states: InitStatesFn | None = None,
  extend_step: ExtendStepFn | None = None,
  cached: CachedNetwork | None = None,
  weight_metas: Callable[[base_layer.BaseLayer], Any] | None = None,
  batch: NestedMap,
  content: tuple[jax.Array, jax.Array],
  causal_prefix: bool = True,
  unconditional: Prefix | None = None,
  source_paddings: jax.Array | None = None,
  result_callback: StreamingResultCallback | None = None,
) -> NestedMap:
  """Decodes with the algorithm of the settings.

  Args:
    network: computes logits; its decode states must be mutable.
    settings: of the decoder.
    prefix: the prefixes, left-aligned.
    init_states: initialises decode states.
    extend_step: computes the logits of the next tokens.
    cached: the network as functions of its decode states, instead of these two;
      greedy decoding is then sampling at the temperature 0.
    weight_metas: returns the `WeightHParams` of the variables of an unbound
      network, which `decode_loop_mesh_axes_transpose` needs.
    batch: has what examples set themselves; see `SampleInputs`.
    content: as of `sample_streams.content_keys`, [B, P] both.
    causal_prefix: whether attention within the prefix is causal.
    unconditional: the prefixes without the condition, for guidance.
    source_paddings: [B, S], of the source of an encoder-decoder.
    result_callback: gets results while sampling goes on; None for none.

  Returns:
    What the algorithm returns, arrays [B, N, ...]; N is 1 of `greedy_decode`.
    With `vanilla_sample_decode` they are [B, ...].

  Raises:
    UserError: a callback, or a mesh of the loop, is not supported.
  """
  if result_callback is not None:
    _check_streams(settings)
  is_greedy = isinstance(settings, GreedyDecoderHParams)
  loop_axes = settings.decode_loop_mesh_axes_transpose
  if is_greedy and cached is None and not loop_axes:
    return greedy.greedy_decode(
      network,
      settings,
      prefix,
      init_states=lambda module, length: init_states(module, length, 1),
      extend_step=extend_step,
      causal_prefix=causal_prefix,
    )
  cached = cached or _cached_network(settings)(
    network, init_states, extend_step
  )
  cached = _on_loop_axes(cached, loop_axes, weight_metas)
  if isinstance(settings, BeamSearchHParams):
    search = _search(settings, batch, source_paddings)
    result = beam_search.beam_search(
      cached, settings, prefix, causal_prefix=causal_prefix, search=search
    )
  else:
    result = _sampled(
      cached,
      settings,
      prefix,
      # Without noise at the temperature 0, the key is not used.
      jax.random.key(0) if is_greedy else random_key(network),
      content,
      batch,
      causal_prefix=causal_prefix,
      unconditional=unconditional,
      result_callback=result_callback,
    )
  if settings.process_result_fn is not None:
    result = settings.process_result_fn(network, result)
  return result


def _sampled(
  cached: CachedNetwork,
  settings: DecoderHParams,
  prefix: Prefix,
  key: jax.Array,
  content: tuple[jax.Array, jax.Array],
  batch: NestedMap,
  **options,
) -> NestedMap:
  """Samples, or decodes greedily; see `decode`."""
  settings = speculative.as_sampling(settings)
  result = sample_decode.sample_decode(
    cached,
    settings,
    prefix,
    sample_streams.content_keys(key, *content),
    inputs=sample_steps.SampleInputs.of(batch),
    sampler=_next_token_sampler(settings, batch),
    **options,
  )
  if settings.vanilla_sample_decode:
    result = jax.tree.map(lambda x: x[:, 0], result)
  return result


def _on_loop_axes(
  cached: CachedNetwork,
  axes: dict[str, str] | None,
  weight_metas: Callable[[base_layer.BaseLayer], Any] | None,
) -> CachedNetwork:
  """Returns the network with the mesh axes of the loop, if there are any."""
  if not axes:
    return cached
  if weight_metas is None:
    raise errors.UserError(
      f'decode_loop_mesh_axes_transpose is {axes!r}; expected None for'
      f' {type(cached.module).__name__}'
    )
  return cached.with_loop_axes(axes, weight_metas(cached.module))


def _search(
  settings: BeamSearchHParams,
  batch: NestedMap,
  source_paddings: jax.Array | None,
) -> Callable[..., beam_search.Search]:
  """Returns the kind of search that the settings select."""
  if not isinstance(settings, PrunedBeamSearchHParams):
    return beam_search.Search
  return functools.partial(
    pruned_beam_search.PrunedSearch,
    rows=batch.get('eval_sample_weights'),
    source_paddings=source_paddings,
  )


def _cached_network(settings: DecoderHParams) -> type[CachedNetwork]:
  """Returns the class that holds the decode states."""
  return LazyPrefixNetwork if settings.lazy_prefix_broadcast else CachedNetwork


def _next_token_sampler(
  settings: SampleDecoderHParams, batch: NestedMap
) -> BaseNextTokenSampler:
  fields = settings.next_token_sampler_tpl.cls.get_extra_kwargs(
    batch, settings.num_samples
  )
  return settings.next_token_sampler(**fields)


def _check_streams(settings: DecoderHParams):
  """Raises a UserError unless a callback gets results of these settings."""
  name = type(settings).__name__
  if not isinstance(settings, SampleDecoderHParams):
    raise errors.UserError(
      f'result_callback: {name} has no results before its end; expected'
      ' SampleDecoderHParams, whose temperature may be 0'
    )
  for field, value in (('fprop_for_prefix', True), ('optimize_eos', False)):
    if getattr(settings, field) != value:
      raise errors.UserError(
        f'result_callback: {name}.{field} is {not value}; expected {value}'
      )


def random_key(network: base_layer.BaseLayer) -> jax.Array:
  """Returns the key of the program, a typed one."""
  if not network.has_rng(base_layer.RANDOM):
    raise errors.UserError(
      f'{type(network).__name__}: to sample, expected rngs with a key'
      f' {base_layer.RANDOM!r}'
    )
  key = network.next_prng_key()
  if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    return key
  return jax.random.wrap_key_data(key)


def original_lengths(result: NestedMap, tokens: jax.Array) -> jax.Array:
  """Returns the lengths of rows as an array like `decode_lengths`.

  Args:
    result: the result of `decode`.
    tokens: [B], the number of tokens without padding.
  """
  shape = result.decode_lengths.shape
  tokens = tokens.reshape(-1, *(1,) * (len(shape) - 1))
  return jnp.broadcast_to(tokens, shape)


def first_tokens(prefix: Prefix) -> Prefix:
  """Returns prefixes of their first token only."""
  return prefixes.create(prefix.ids, jnp.ones_like(prefix.lengths))
