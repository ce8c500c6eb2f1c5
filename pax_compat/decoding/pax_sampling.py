"""Sampling by Pax's calls: of any model, with any function of a step.

The caller fills the decode states (`fprop_fn`) and changes them
(`transform_state_fn`); the loop reads a token of each row in each step. The
decoders of our models use `sample_decode`, which does both itself.

Shapes: B rows, N samples of a row, R = B * N, P prefix, T positions, V
vocabulary.

Arguments of the functions:

* model: a bound layer; its decode states must be mutable.
* extend_step_fn: (model, ids [R], segment_pos [R]) -> logits [R, V]; a fourth
  argument is the state of the loop.
* transform_state_fn: (model, function of (state, batch_dim, time_dim)),
  changes the decode states; None if there are none.
* lazy_broadcast_prefix_fn: (model, num_samples, steps), keeps the states of
  prefixes for all samples of a row; None repeats them.
* next_token_sampler: of the next token.
* prefix_ids: [B, P]; right-aligned with `fprop_for_prefix`.
* prefix_paddings: [B, P], 1 at padding.
* seq_len: T, with the prefix.
* num_samples: N.
* fprop_fn: (model, ids, paddings), fills the decode states.
* cf_guidance_scale: see `sample_steps.Rows`; rows with and without the
  condition are in turn, and only those with it are returned.
* fprop_for_prefix: whether `fprop_fn` has read the prefix.
* temperature: a number, [B] or [B, N].
* gumbel_prng_key: [B] or [B, 2], key data; None for the model's keys.
* per_example_top_p: [B].
* per_example_top_k: [B].
* max_prefix_len: P, with `fprop_for_prefix`.
* max_decode_steps: after the prefix; several are those at which the decode
  states grow. None for `seq_len`.
* per_example_max_decode_steps: [B].
* prefix_lengths: [B]; None for 0.
* eos_id: tokens that end a sample; or stop sequences [B, E], padded with 0 at
  the left.
* result_callback: gets results while decoding goes on.
* decode_loop_mesh_axes_transpose: not supported.
* model_var_pspecs: of `decode_loop_mesh_axes_transpose`; not read.
* return_result_for_suffix_score: whether to return the state of the loop.
* sort_samples: whether the most likely samples come first.
* top_k_recall_target: of an approximate sort; ours is exact.
* early_exit: whether the loop ends when all samples have ended. If not, it
  has a fixed number of steps, and summaries and auxiliary losses of the
  model are stacked over the steps, [steps, ...].
* use_top_k_for_logprobs: whether log-probabilities are the sampler's.
* controlled_decoding: not supported.
* return_entropy_score: whether the result has the entropy of each token.
* process_result_fn: (model, result) -> result.
* optimize_eos: ends each sample where that is most likely.
* sample_constraint: ends samples, with `enforce_sample_constraints` [R].
* enforce_sample_constraints: of `sample_constraint`.
* num_per_token_logprobs: [B], number of the most likely tokens to return.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.decoding import state_alignment
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.decoding.pax_sampling_loop import Loop, Prefixes
from pax_compat.decoding.result_streams import ResultStream
from pax_compat.decoding.sample_decode import (
  BaseSampleTerminationConstraint,
  sort_samples_by_scores,
)
from pax_compat.decoding.sample_steps import (
  Rows,
  SampleInputs,
  SampleSteps,
  split_batch_dim,
)
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers


def sample_decode(
  model: base_layer.BaseLayer,
  extend_step_fn: Callable[..., jax.Array],
  transform_state_fn: Callable | None,
  lazy_broadcast_prefix_fn: Callable | None,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: jax.Array,
  prefix_paddings: jax.Array,
  seq_len: int,
  num_samples: int,
  fprop_fn: Callable | None = None,
  cf_guidance_scale: Sequence[float] | float | jax.Array | None = None,
  fprop_for_prefix: bool = False,
  temperature: float | jax.Array = 1.0,
  gumbel_prng_key: jax.Array | None = None,
  per_example_top_p: jax.Array | float | None = None,
  per_example_top_k: jax.Array | int | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | Sequence[int] | None = None,
  per_example_max_decode_steps: jax.Array | None = None,
  prefix_lengths: jax.Array | None = None,
  eos_id: int | Sequence[int] | jax.Array | None = None,
  result_callback: StreamingResultCallback | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
  return_result_for_suffix_score: bool = False,
  sort_samples: bool = True,
  top_k_recall_target: float = 0.85,
  early_exit: bool = True,
  use_top_k_for_logprobs: bool = False,
  controlled_decoding: Any = None,
  return_entropy_score: bool = False,
  process_result_fn: Callable | None = None,
  optimize_eos: bool = False,
  sample_constraint: BaseSampleTerminationConstraint | None = None,
  enforce_sample_constraints: jax.Array | None = None,
  num_per_token_logprobs: jax.Array | None = None,
) -> NestedMap:
  """Samples until every sample has ended.

  For the arguments see the module. Returns what `sample_decode.sample_decode`
  returns.

  Raises:
    UserError: an argument is not supported.
  """
  arguments = dict(locals())
  _check(model, arguments)
  if fprop_fn is not None:
    fprop_fn(model, prefix_ids, prefix_paddings)
    if transform_state_fn is not None and lazy_broadcast_prefix_fn is None:
      first = seq_len - 1
      if fprop_for_prefix:
        first = _stages(max_decode_steps, seq_len)[0]
      transform_state_fn(model, state_alignment.pad_state_fn(first))
  for name in _BEFORE_THE_LOOP:
    del arguments[name]
  result = sample_decode_after_fprop(**arguments)
  if process_result_fn is not None:
    result = process_result_fn(model, result)
  return result


# Arguments of `sample_decode` that only it reads.
_BEFORE_THE_LOOP = (
  'fprop_fn',
  'decode_loop_mesh_axes_transpose',
  'model_var_pspecs',
  'process_result_fn',
)


def sample_decode_after_fprop(
  model: base_layer.BaseLayer,
  extend_step_fn: Callable[..., jax.Array],
  transform_state_fn: Callable | None,
  lazy_broadcast_prefix_fn: Callable | None,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: jax.Array,
  prefix_paddings: jax.Array,
  seq_len: int,
  num_samples: int,
  **options,
) -> NestedMap:
  """Samples with a model that has read the prefixes; see `sample_decode`."""
  given = _SETTINGS | options
  unknown = set(options) - set(_SETTINGS)
  if unknown:
    raise TypeError(f'sample_decode: unexpected arguments {sorted(unknown)}')
  given |= {
    'prefix_ids': prefix_ids,
    'prefix_paddings': prefix_paddings,
    'seq_len': seq_len,
    'num_samples': num_samples,
  }
  _check(model, given)
  stages = _stages(given['max_decode_steps'], seq_len)
  _repeat_states(
    model, transform_state_fn, lazy_broadcast_prefix_fn, num_samples, stages[0]
  )
  settings = _settings(given)
  rows = _rows(given, settings, stages[-1])
  sampling = SampleSteps(model, next_token_sampler, settings, rows)
  stream = None
  if given['result_callback'] is not None:
    stream = ResultStream(
      given['result_callback'],
      given['max_prefix_len'] if given['fprop_for_prefix'] else 1,
      lambda x: split_batch_dim(x, 0, num_samples),
      jnp.zeros(len(prefix_ids), jnp.int32),
    )
    stream.begin(len(prefix_ids), num_samples)
  loop = Loop(
    model,
    state_alignment.coerce_to_expanded_extend_step_fn(extend_step_fn),
    sampling,
    rows,
    settings,
    _prefixes(given, stages),
    _keys(model, given['gumbel_prng_key'], num_samples),
    stream,
  )
  val = loop.run(transform_state_fn, early_exit=given['early_exit'])
  if stream is not None:
    stream.end()
  if given['return_result_for_suffix_score']:
    return val
  result = loop.result(val)
  if num_samples > 1 and given['sort_samples']:
    return sort_samples_by_scores(result)
  return result


def _repeat_states(
  model: base_layer.BaseLayer,
  transform_state_fn: Callable | None,
  lazy_broadcast_prefix_fn: Callable | None,
  num_samples: int,
  steps: int,
):
  """Gives each sample of a row its decode states.

  Args:
    model: the model.
    transform_state_fn: see `sample_decode`.
    lazy_broadcast_prefix_fn: likewise.
    num_samples: N.
    steps: number of decoded tokens for which there is room at first.
  """
  if num_samples == 1 or transform_state_fn is None:
    return
  if lazy_broadcast_prefix_fn is None:
    transform_state_fn(
      model, state_alignment.batch_broadcast_state_fn(num_samples)
    )
    return
  # The first step reads the last token of the prefix once more.
  transform_state_fn(model, state_alignment.slice_state_fn(0, -1))
  lazy_broadcast_prefix_fn(model, num_samples, steps + 1)


# The optional arguments of `sample_decode_after_fprop`, with their defaults.
_SETTINGS = {
  parameter.name: parameter.default
  for parameter in inspect.signature(sample_decode).parameters.values()
  if parameter.default is not parameter.empty
  and parameter.name not in _BEFORE_THE_LOOP
}


def _check(model: base_layer.BaseLayer, arguments: dict[str, Any]):
  """Raises a UserError for arguments that are not supported."""
  for name in ('decode_loop_mesh_axes_transpose', 'controlled_decoding'):
    if arguments.get(name):
      raise errors.UserError(f'sample_decode: {name} is not supported')
  if arguments['seq_len'] <= 0:
    raise errors.UserError(
      f'sample_decode: seq_len is {arguments["seq_len"]}; expected 1 or more'
    )
  if arguments['fprop_for_prefix'] and arguments['max_prefix_len'] is None:
    raise errors.UserError(
      'sample_decode: with fprop_for_prefix, max_prefix_len is required'
    )
  has_constraint = arguments['sample_constraint'] is not None
  if has_constraint != (arguments['enforce_sample_constraints'] is not None):
    raise errors.UserError(
      'sample_decode: expected both sample_constraint and'
      ' enforce_sample_constraints, or neither'
    )
  if not model.is_mutable_collection(base_layer.DECODE_CACHE):
    raise errors.UserError(
      f'{type(model).__name__}: to decode, the collection'
      f' {base_layer.DECODE_CACHE!r} must be mutable'
    )


def _stages(steps: int | Sequence[int] | None, seq_len: int) -> list[int]:
  """Returns the numbers of decoded tokens at which states grow, ascending."""
  if not steps:
    return [seq_len]
  return sorted([steps] if isinstance(steps, int) else steps)


def greedy_decode(
  model: base_layer.BaseLayer,
  extend_step_fn: Callable[..., jax.Array],
  prefix_ids: jax.Array,
  prefix_paddings: jax.Array,
  seq_len: int,
  fprop_for_prefix: bool = False,
  fprop_fn: Callable | None = None,
  transform_state_fn: Callable | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | Sequence[int] | None = None,
  prefix_lengths: jax.Array | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
  eos_id: int | None = None,
  process_result_fn: Callable | None = None,
) -> NestedMap:
  """Takes the most likely token in each step; see `sample_decode`."""
  arguments = dict(locals())
  return sample_decode(
    **arguments,
    lazy_broadcast_prefix_fn=None,
    next_token_sampler=token_samplers.DefaultNextTokenSampler(top_k=1),
    num_samples=1,
    temperature=0.0,
  )


def vanilla_sample_decode(
  model: base_layer.BaseLayer,
  fprop_fn: Callable,
  extend_step_fn: Callable[..., jax.Array],
  transform_state_fn: Callable,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: jax.Array,
  prefix_paddings: jax.Array,
  max_decode_steps: int,
  temperature: float | jax.Array = 1.0,
  gumbel_prng_key: jax.Array | None = None,
  eos_id: int | Sequence[int] | jax.Array | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
) -> NestedMap:
  """Decodes one sample of each right-aligned prefix; see `sample_decode`.

  Returns:
    Arrays [B, ...], without a dimension of samples.
  """
  prefix = prefix_ids.shape[1]
  result = sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    None,
    next_token_sampler,
    prefix_ids,
    prefix_paddings,
    prefix + max_decode_steps,
    1,
    fprop_fn=fprop_fn,
    fprop_for_prefix=True,
    temperature=temperature,
    gumbel_prng_key=gumbel_prng_key,
    max_prefix_len=prefix,
    max_decode_steps=max_decode_steps,
    prefix_lengths=jnp.sum(1 - prefix_paddings.astype(jnp.int32), axis=-1),
    eos_id=eos_id,
    decode_loop_mesh_axes_transpose=decode_loop_mesh_axes_transpose,
    model_var_pspecs=model_var_pspecs,
  )
  del result.original_lengths
  return jax.tree.map(lambda x: x[:, 0], result)


def _settings(given: dict[str, Any]) -> SampleDecoderHParams:
  """Returns what all rows share, of the arguments of `sample_decode`."""
  eos = given['eos_id']
  if eos is None or isinstance(eos, jax.Array):
    if given['optimize_eos']:
      raise errors.UserError(
        'sample_decode: optimize_eos expects eos_id to be one or more tokens'
      )
    eos = -1  # No token.
  return SampleDecoderHParams(
    seqlen=given['seq_len'],
    num_samples=given['num_samples'],
    fprop_for_prefix=given['fprop_for_prefix'],
    eos_id=eos,
    use_top_k_for_logprobs=given['use_top_k_for_logprobs'],
    optimize_eos=given['optimize_eos'],
    sample_constraint=given['sample_constraint'],
    cf_guidance_scale=_scales(given['cf_guidance_scale'])[1],
  )


def _prefixes(given: dict[str, Any], stages: list[int]) -> Prefixes:
  """Returns the prefixes of the arguments of `sample_decode`."""
  ids, lengths = jnp.asarray(given['prefix_ids']), given['prefix_lengths']
  if lengths is None:
    lengths = jnp.zeros(len(ids), jnp.int32)
  original = jnp.sum(1.0 - given['prefix_paddings'], axis=1).astype(jnp.int32)
  are_read = given['fprop_for_prefix']

  def repeat(x):
    return jnp.repeat(x, given['num_samples'], axis=0)

  return Prefixes(
    ids=repeat(ids),
    lengths=repeat(lengths),
    original_lengths=repeat(original),
    are_read=are_read,
    start=given['max_prefix_len'] - 1 if are_read else 0,
    total=given['seq_len'],
    stages=stages,
  )


def _rows(
  given: dict[str, Any], settings: SampleDecoderHParams, max_steps: int
) -> Rows:
  """Returns the settings of each row, from the arguments of `sample_decode`."""
  is_guided = given['cf_guidance_scale'] is not None
  rows, eos = len(given['prefix_ids']), given['eos_id']

  def with_condition(x: Any) -> Any:
    return x[::2] if is_guided and isinstance(x, jax.Array) else x

  inputs = SampleInputs(
    temperature=given['temperature'],
    per_example_max_decode_steps=given['per_example_max_decode_steps'],
    per_example_top_p=given['per_example_top_p'],
    per_example_top_k=given['per_example_top_k'],
    eos_id=with_condition(eos) if isinstance(eos, jax.Array) else None,
    cf_guidance_scale=_scales(given['cf_guidance_scale'])[0],
    num_per_token_logprobs=with_condition(given['num_per_token_logprobs']),
    return_entropy_score=given['return_entropy_score'],
  )
  asked = Rows.of(
    inputs,
    settings,
    rows // 2 if is_guided else rows,
    max_steps,
    is_guided=is_guided,
  )
  return asked.replace(enforced=given['enforce_sample_constraints'])


def _scales(scale: Any) -> tuple[jax.Array | None, Any]:
  """Returns the scale of guidance as that of each row, or of all rows."""
  if scale is None or isinstance(scale, Sequence) or not jnp.ndim(scale):
    return None, scale
  return scale, None


def _keys(
  model: base_layer.BaseLayer, given: jax.Array | None, num_samples: int
) -> jax.Array | None:
  """Returns keys [R]; None if none are given: the sampler makes them.

  If all given ones are `DUMMY_PRNG_KEY`, they are of the model's stream, or
  fixed if it has none.
  """
  if given is None:
    return None
  key = jax.random.key(token_samplers.DUMMY_PRNG_KEY)
  if model.has_rng(base_layer.RANDOM):
    key = model.next_prng_key()
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      key = jax.random.wrap_key_data(key)
  others = jax.random.split(key, len(given))
  keys, _ = sample_streams.given_keys(given, others)
  return sample_streams.sample_keys(keys, num_samples)
