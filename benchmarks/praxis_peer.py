"""Decoding by real praxis, from a checkout: a peer of `benchmarks.decode`."""

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from adaptors import lingvo_runtime
from pax_compat import errors
from pax_compat.nested_map import NestedMap

_COLLECTIONS = ['decoder_cache', 'summaries', 'non_trainable']


class PraxisPeer:
  """Decodes with praxis's `LanguageModel`, with our weights."""

  def __init__(self, source: str, *, dims: int, layers: int, vocab_size: int):
    """Imports praxis.

    Args:
      source: a checkout of praxis. What it imports and this project does not
        need must be importable, such as jaxtyping.
      dims: of the model, as in `decode.network_config`.
      layers: likewise.
      vocab_size: likewise.

    Raises:
      UserError: praxis cannot be imported.
    """
    root = pathlib.Path(source).expanduser().resolve()
    sys.path.insert(0, str(root))
    lingvo_runtime.load()
    try:
      self._praxis = {
        name.rpartition('.')[2]: importlib.import_module(f'praxis.{name}')
        for name in (
          'base_layer',
          'decoder_hparams',
          'pax_fiddle',
          'py_utils',
          'layers.models',
          'layers.transformer_models',
        )
      }
    except ImportError as error:
      raise errors.UserError(
        f'--praxis_peer={source}: {error}; expected a checkout of praxis, and'
        ' the packages that it imports on the path'
      ) from error
    self._sizes = dims, layers, vocab_size

  def decoding(self, settings: Any) -> Callable:
    """Returns the compiled function (params, batch) -> tokens.

    Args:
      settings: config of our settings of a decoder; praxis has the same fields.
    """
    praxis, ours = self._praxis, settings.Instantiate()
    cls = getattr(praxis['decoder_hparams'], type(ours).__name__)
    names = {'seqlen', 'max_decode_steps', 'fprop_for_prefix', 'eos_id'}
    names |= {'num_samples', 'k', 'beam_size'} & set(vars(ours))
    given = {name: getattr(ours, name) for name in names}
    given['seqlen'] = None  # Set when the length of the prefix is known.
    context = praxis['base_layer'].JaxContext
    eval_mode = context.HParams(do_eval=True)

    @jax.jit
    def run(params, batch):
      length = batch.ids.shape[1]
      given['seqlen'] = length + given['max_decode_steps']
      model = self._model(praxis['pax_fiddle'].Config(cls, **given))
      with context.new_context(hparams=eval_mode):
        (_, out, _), _ = model.apply(
          {'params': {'lm': params}},
          self._batch(batch),
          method=model.decode,
          mutable=_COLLECTIONS,
          rngs={'random': jax.random.PRNGKey(0)},
        )
      return out.output_ids

    return run

  def _model(self, decoder: Any) -> Any:
    dims, layers, vocab_size = self._sizes
    config = self._praxis['pax_fiddle'].Config
    network = config(
      self._praxis['transformer_models'].TransformerLm,
      model_dims=dims,
      vocab_size=vocab_size,
    )
    stack = network.stacked_transformer_tpl
    stack.num_layers, stack.hidden_dims = layers, 4 * dims
    stack.num_heads = max(dims // 64, 1)
    model = config(
      self._praxis['models'].LanguageModel, lm_tpl=network, decoder_tpl=decoder
    )
    return self._praxis['base_layer'].instantiate(model)

  def _batch(self, batch: NestedMap) -> Any:
    ones = jnp.ones(batch.ids.shape)
    return self._praxis['py_utils'].NestedMap(
      ids=batch.ids,
      labels=batch.ids,
      paddings=batch.paddings,
      weights=ones,
      segment_ids=ones.astype(jnp.int32),
      segment_pos=jnp.cumsum(ones, axis=1).astype(jnp.int32) - 1,
    )
