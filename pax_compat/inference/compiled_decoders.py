"""Compiled functions of text generation.

Shapes: B prompts, P tokens of the longest, rounded up, T tokens of an output.
"""

import dataclasses
from typing import Any

import jax

from pax_compat import base_layer
from pax_compat import config as config_lib
from pax_compat.decoder_hparams import BeamSearchHParams
from pax_compat.decoding import speculative
from pax_compat.inference import prompt_texts, text_streams
from pax_compat.inference.decoding_options import DecodingOptions
from pax_compat.nested_map import NestedMap

# No token has this id: a sequence ends at its maximum length only.
_NO_TOKEN = -1
# Tokens that a draft model proposes in a step.
_DRAFT_STEPS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderKey:
  """What a compiled function depends on.

  Attributes:
    size: P.
    steps: maximum number of tokens to add.
    eos_id: the token that ends a sequence; None for none.
    options: of the decoder, without the seed.
    streams: whether tokens are sent while they are decoded.
  """

  size: int
  steps: int
  eos_id: int | None
  options: DecodingOptions
  streams: bool


@dataclasses.dataclass(frozen=True)
class CompiledDecoder:
  """A compiled function.

  Attributes:
    function: (mdl_vars, draft_vars, batch, seed, number) -> `ids` and `lengths`
      of the outputs. The number is that of a stream; see `TracedStreams`.
    streams: gets tokens while they are decoded, if the key says so.
    draft: the draft model, or None.
  """

  function: Any
  streams: text_streams.TracedStreams
  draft: Any


def find(model: Any, draft: Any, key: DecoderKey) -> CompiledDecoder:
  """Returns the function of a `TrainedModel`, which is compiled once."""
  full_key = (id(draft), key)
  if full_key not in model.decoders:
    # It refers to the draft model, whose id stays its own.
    model.decoders[full_key] = _compiled(model, draft, key)
  return model.decoders[full_key]


def _compiled(model: Any, draft: Any, key: DecoderKey) -> CompiledDecoder:
  network = network_of(model, draft, key)
  task, mesh = model.program.task, model.program.mesh
  streams = text_streams.TracedStreams()

  def decoded(mdl_vars, draft_vars, batch, rngs, callback):
    settings = network.decoder_tpl
    if draft is not None:
      return network.bind(mdl_vars, rngs=rngs).decode_with_draft(
        draft.program.model.bind(draft_vars, rngs=rngs),
        settings,
        batch,
        draft_steps=key.options.draft_steps or _DRAFT_STEPS,
        result_callback=callback,
      )
    method, given = 'decode', (batch,)
    if key.streams:
      if not isinstance(settings, BeamSearchHParams):
        settings = speculative.as_sampling(settings)
      method, given = 'decode_with_params', (settings, batch, callback)
    (_, found, _), _ = network.apply(
      mdl_vars,
      *given,
      method=method,
      rngs=rngs,
      mutable=list(task.decode.apply_mutable_list),
    )
    return found

  @jax.jit
  def decode(mdl_vars, draft_vars, batch, seed, number):
    callback = streams.callback(number) if key.streams else None
    with (
      base_layer.eval_mode(),
      jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    ):
      rngs = {base_layer.RANDOM: jax.random.key(seed)}
      found = decoded(mdl_vars, draft_vars, batch, rngs, callback)
    return NestedMap(ids=found.output_ids, lengths=found.decode_lengths)

  return CompiledDecoder(decode, streams, draft)


def network_of(model: Any, draft: Any, key: DecoderKey) -> Any:
  """Returns the model with the settings of its decoder."""
  config = model.config.model.clone()
  decoder = key.options.decoder(config.decoder_tpl)
  config.decoder_tpl = decoder
  seqlen = key.size + key.steps
  most = prompt_texts.max_positions(model)
  if most is not None:
    # Without its padding, a prompt has fewer tokens than `size`.
    seqlen = min(seqlen, most)
  fields = dict(seqlen=seqlen, max_decode_steps=key.steps)
  if not config_lib.is_set(decoder, 'eos_id'):
    fields['eos_id'] = _NO_TOKEN if key.eos_id is None else key.eos_id
  if (
    key.options.beam_size is not None
    or key.options.samples
    or key.streams
    or draft is not None
  ):
    fields['fprop_for_prefix'] = True
  if key.streams and 'sort_samples' in config_lib.field_names(decoder):
    # A piece has the index of its sample.
    fields['sort_samples'] = False
  decoder.set(**fields)
  return config.Instantiate()
