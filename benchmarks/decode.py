"""Tokens per second of decoding, against a bare loop of the same network.

    python -m benchmarks.decode --batch_size=4 --decode_steps=64

The bare loop is one jitted `while_loop` over the network's `extend_step`, with
as many rows as there are sequences: one for each example, 16 samples, or 4
hypotheses. It takes the most likely token, for samples a random one with a
single key, or for beams the best of all hypotheses' tokens by the sum of their
log-probabilities, with the caches reordered. It has no ends, scores or
log-probabilities to return. Both read the prefix once for each example.

With `--praxis_peer=CHECKOUT` real praxis decodes, too, with the same weights;
packages that it imports must be on the path, such as jaxtyping.

`prefill` reads the prefix and decodes one token; its peer is a forward pass
over the prefix and a token. `translate` is the beam search of an
encoder-decoder of two such stacks, of a source as long as the prefix; its peer
is a bare loop, too, which reorders all caches, those of the source included.

Shapes: B examples, P prefix, R sequences, K hypotheses, V vocabulary.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import command_line, praxis_peer
from pax_compat import base_layer
from pax_compat.decoding.cached_network import CachedNetwork
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from pax_compat.nested_map import NestedMap

_BATCH_SIZE = flags.DEFINE_integer('batch_size', 4, 'Number of examples.')
_PREFIX = flags.DEFINE_integer('prefix', 64, 'Tokens of a prefix.')
_STEPS = flags.DEFINE_integer('decode_steps', 64, 'Decoded tokens.')
_DIMS = flags.DEFINE_integer('model_dims', 256, 'Model dimensions.')
_LAYERS = flags.DEFINE_integer('num_layers', 4, 'Number of layers.')
_VOCAB = flags.DEFINE_integer('vocab_size', 8192, 'Number of tokens.')

_PRAXIS = flags.DEFINE_string(
  'praxis_peer', None, 'A checkout of praxis, to be measured too.'
)

_SAMPLES, _BEAMS = 16, 4


def decoders(steps: int) -> dict[str, tuple[Any, int]]:
  """Returns the settings and the number of sequences of an example, by name."""
  common = dict(
    seqlen=100_000, max_decode_steps=steps, fprop_for_prefix=True, eos_id=-1
  )
  return {
    'greedy': (models.GreedyDecoderHParams.config(**common), 1),
    'sample': (
      models.SampleDecoderHParams.config(num_samples=_SAMPLES, k=0, **common),
      _SAMPLES,
    ),
    'beam': (
      models.BeamSearchHParams.config(beam_size=_BEAMS, **common),
      _BEAMS,
    ),
  }


def network_config(dims: int, layers: int, vocab_size: int) -> Any:
  """Returns the config of a Transformer language model."""
  config = TransformerLm.config(model_dims=dims, vocab_size=vocab_size)
  config.stacked_transformer_tpl.set(
    num_layers=layers, num_heads=max(dims // 64, 1), hidden_dims=4 * dims
  )
  return config


def translator_config(dims: int, layers: int, vocab_size: int) -> Any:
  """Returns the config of a Transformer encoder-decoder."""
  config = TransformerEncoderDecoder.config(model_dims=dims)
  config.softmax_tpl.num_classes = vocab_size
  for side in ('encoder', 'decoder'):
    stack = StackedTransformer.config(
      num_layers=layers, num_heads=max(dims // 64, 1), hidden_dims=4 * dims
    )
    setattr(config, f'{side}_stacked_transformer_tpl', stack)
  return config


def decoding(config: Any, settings: Any) -> Callable:
  """Returns the compiled function (params, batch) -> tokens."""
  translates = issubclass(config.cls, TransformerEncoderDecoder)
  if translates:
    model_tpl = models.SequenceModel.config(model_tpl=config)
  else:
    model_tpl = models.LanguageModel.config(lm_tpl=config)
  model = model_tpl.set(decoder_tpl=settings).Instantiate()
  name = 'model' if translates else 'lm'

  @jax.jit
  def run(params, batch):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {base_layer.PARAMS: {name: params}},
        NestedMap(src=batch, tgt=_begin(batch)) if translates else batch,
        method='decode',
        mutable=[base_layer.DECODE_CACHE],
        rngs={base_layer.RANDOM: jax.random.key(0)},
      )
    return out.output_ids

  return run


def bare_loop(config: Any, steps: int, repeats: int, kind: str) -> Callable:
  """Returns the compiled function (params, batch) -> tokens, [R, P + steps].

  Args:
    config: of the network.
    steps: how many tokens are decoded.
    repeats: the number of sequences of an example.
    kind: 'greedy', 'sample' or 'beam'.
  """
  layer = config.Instantiate()
  extend = {
    'greedy': _most_likely,
    'sample': _random,
    'beam': functools.partial(_best_hypotheses, repeats),
  }[kind]

  translates = issubclass(config.cls, TransformerEncoderDecoder)

  @jax.jit
  def run(params, source):
    batch = _begin(source) if translates else source
    rows, prefix = batch.ids.shape
    with base_layer.eval_mode():
      bound = layer.bind({base_layer.PARAMS: params})
      if translates:
        network = CachedNetwork(
          bound, functools.partial(_read_source, source), _logits
        )
      else:
        network = CachedNetwork(
          bound,
          lambda lm, length, many: lm.init_states(rows * many, length),
          _last_logits,
        )
      states = network.init_states(prefix + steps)
      logits, states = network.step(states, batch.ids, jnp.asarray(0))
      states = network.repeat(states, repeats)
      logits = jnp.repeat(logits, repeats, 0)
      ids = jnp.repeat(jnp.pad(batch.ids, ((0, 0), (0, steps))), repeats, 0)
      # Only the first hypothesis of an example counts at first.
      scores = -1e9 * (jnp.arange(rows * repeats) % repeats)

      def body(carry):
        position, ids, scores, states = carry
        logits, states = network.step(states, ids[:, position, None], position)
        new, sources, scores = extend(logits, scores, position + 1)
        if sources is not None:
          ids, states = ids[sources], _gathered(network, states, sources)
        ids = ids.at[:, position + 1].set(new.astype(ids.dtype))
        return position + 1, ids, scores, states

      new, _, scores = extend(logits, scores, prefix)
      ids = ids.at[:, prefix].set(new.astype(ids.dtype))
      _, ids, *_ = jax.lax.while_loop(
        lambda carry: carry[0] < prefix + steps - 1,
        body,
        (jnp.asarray(prefix), ids, scores, states),
      )
    return ids

  return run


def _begin(source: NestedMap) -> NestedMap:
  """Returns the begin tokens of targets, [B, 1]."""
  return NestedMap(
    ids=jnp.ones_like(source.ids[:, :1]), paddings=source.paddings[:, :1]
  )


def _read_source(source: NestedMap, model: Any, length: int, many: int):
  ids, paddings = (
    jnp.repeat(x, many, axis=0) for x in (source.ids, source.paddings)
  )
  model.init_states(ids, paddings, max_length=length)


def _logits(model: Any, ids: jax.Array, **step) -> jax.Array:
  return model.extend_step(ids, **step).logits


def _last_logits(
  lm: Any, ids: jax.Array, *, last_only: bool = False, **step
) -> jax.Array:
  return lm.extend_step(ids, last_only=last_only, **step).logits


def _gathered(network: CachedNetwork, states: Any, rows: jax.Array) -> Any:
  return network.transform(
    states,
    lambda x, batch, _: x if batch < 0 else jnp.take(x, rows, axis=batch),
  )


def _most_likely(logits, scores, position):
  """Returns (tokens, source rows or None, scores) of the next position."""
  del position
  return jnp.argmax(logits, axis=-1), None, scores


def _random(logits, scores, position):
  key = jax.random.fold_in(jax.random.key(0), position)
  return jax.random.categorical(key, logits), None, scores


def _best_hypotheses(beams, logits, scores, position):
  del position
  vocab_size = logits.shape[-1]
  totals = scores[:, None] + jax.nn.log_softmax(logits)  # [B * K, V]
  scores, best = jax.lax.top_k(totals.reshape(-1, beams * vocab_size), beams)
  first = beams * jnp.arange(len(best))[:, None]
  sources = (first + best // vocab_size).ravel()
  return (best % vocab_size).ravel(), sources, scores.ravel()


def forward_pass(config: Any) -> Callable:
  """Returns the compiled function (params, batch) -> logits [B, P, V]."""
  layer = config.Instantiate()

  @jax.jit
  def run(params, batch):
    with base_layer.eval_mode():
      return layer.apply(
        {base_layer.PARAMS: params}, batch.ids, batch.paddings
      ).logits

  return run


def seconds(functions: Sequence[Callable], rounds: int) -> list[float]:
  """Returns the median time of each function; they are measured in turn."""
  return [statistics.median(taken) for taken in times(functions, rounds)]


def times(functions: Sequence[Callable], rounds: int) -> list[list[float]]:
  """Returns the seconds of each function in each round, after a first call."""
  for function in functions:
    jax.block_until_ready(function())
  found = [[] for _ in functions]
  for _ in range(rounds):
    for function, taken in zip(functions, found, strict=True):
      start = time.perf_counter()
      jax.block_until_ready(function())
      taken.append(time.perf_counter() - start)
  return found


def measure(
  *,
  batch_size: int,
  prefix: int,
  steps: int,
  dims: int,
  layers: int,
  vocab_size: int,
  rounds: int,
  praxis_source: str | None = None,
) -> dict[str, tuple[float, ...]]:
  """Returns tokens per second of each decoder and of its peers, by name.

  The peers are the bare loop, or for `prefill` a forward pass, and praxis.
  """
  config = network_config(dims, layers, vocab_size)
  batch = _batch(batch_size, prefix, vocab_size)
  params = random_weights(config, batch)
  praxis = None
  if praxis_source:
    praxis = praxis_peer.PraxisPeer(
      praxis_source, dims=dims, layers=layers, vocab_size=vocab_size
    )
  found = {}
  for name, (settings, repeats) in decoders(steps).items():
    functions = [
      decoding(config, settings),
      bare_loop(config, steps, repeats, name),
    ]
    if praxis is not None:
      functions.append(praxis.decoding(settings))
    taken = seconds([lambda f=f: f(params, batch) for f in functions], rounds)
    tokens = batch_size * repeats * steps
    found[name] = tuple(tokens / each for each in taken)
  one_token = decoding(config, decoders(1)['greedy'][0])
  longer = _batch(batch_size, prefix + 1, vocab_size)
  whole = forward_pass(config)
  taken = seconds(
    [lambda: one_token(params, batch), lambda: whole(params, longer)], rounds
  )
  tokens = batch_size * (prefix + 1)
  found['prefill'] = (tokens / taken[0], tokens / taken[1])
  config = translator_config(dims, layers, vocab_size)
  params = random_weights(config, batch)
  settings, repeats = decoders(steps)['beam']
  functions = [
    decoding(config, settings),
    bare_loop(config, steps, repeats, 'beam'),
  ]
  taken = seconds([lambda f=f: f(params, batch) for f in functions], rounds)
  tokens = batch_size * repeats * steps
  found['translate'] = (tokens / taken[0], tokens / taken[1])
  return found


def random_weights(config: Any, batch: NestedMap) -> Any:
  """Returns initial weights of a network, of either config."""
  inputs = (batch.ids, batch.paddings)
  if issubclass(config.cls, TransformerEncoderDecoder):
    inputs *= 2
  variables = jax.jit(config.Instantiate().init)(
    {base_layer.PARAMS: jax.random.key(0)}, *inputs
  )
  return base_layer.unbox(variables)[base_layer.PARAMS]


def _batch(rows: int, length: int, vocab_size: int) -> NestedMap:
  ids = np.random.default_rng(0).integers(3, vocab_size, (rows, length))
  return NestedMap(
    ids=ids.astype(np.int32), paddings=np.zeros(ids.shape, np.float32)
  )


def main(argv: Sequence[str]):
  """Prints the measurements."""
  del argv
  found = measure(
    batch_size=_BATCH_SIZE.value,
    prefix=_PREFIX.value,
    steps=_STEPS.value,
    dims=_DIMS.value,
    layers=_LAYERS.value,
    vocab_size=_VOCAB.value,
    rounds=command_line.ROUNDS.value,
    praxis_source=_PRAXIS.value,
  )
  print(f'{jax.devices()[0].device_kind}: tokens/s; peers, ours/peer')
  for name, (ours, *others) in found.items():
    peers = ' '.join(f'{x:12.0f} {ours / x:6.2f}' for x in others)
    print(f'{name:>9} {ours:12.0f} {peers}')


if __name__ == '__main__':
  app.run(main)
