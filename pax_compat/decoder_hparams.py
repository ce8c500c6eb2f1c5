"""Settings of decoders."""

import copy
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import token_samplers

# (network, decoded) -> decoded; post-processing on the accelerators.
ProcessResultFn = Callable[[Any, NestedMap], NestedMap]


class DecoderHParams(config_lib.Configurable):
  """Base of the settings of decoders.

  Steps are decoded tokens, without those of the prefix.

  Attributes:
    seqlen: maximum number of tokens of an output, prefix included; longer
      prefixes are truncated. It must be set. As in Pax, a `LanguageModel` with
      `fprop_for_prefix` does not read it: its outputs end `max_decode_steps`
      after the longest prefix, or at the last trained position.
    min_prefix_len: has no effect, as in Pax.
    eos_id: the token that ends a sequence, or several such tokens; by default
      2. It is the last token of an output.
    min_decode_steps: minimum number of steps, by default 0. Greedy decoding and
      beam search read it.
    max_decode_steps: maximum number of steps; None, the default, is limited by
      `seqlen` only. Of several numbers the largest is the maximum; the cache of
      samples and beams grows from each to the next when a sequence gets there.
    fprop_for_prefix: whether the network reads the prefix in one step instead
      of token by token. It needs `max_decode_steps`: an output has as many
      positions after the longest prefix.
    lazy_prefix_broadcast: whether samples, or hypotheses, share the cache of
      their prefix; else they share its computation, and each has a copy. The
      attention must be one of `layers.attentions.lazy_prefix`.
    decode_loop_mesh_axes_transpose: the mesh axis that stands for another one
      in all steps after that of the prefix, by name; weights are moved between.
    process_result_fn: a function (network, decoded) -> decoded that
      post-processes the result; or None, the default.
    emb_lookup_style: has no effect: the embedding layer decides.
    use_extra_input_kwargs: whether `extra_input_kwargs` of the batch, trees of
      arrays [B, ...] or [B, P, ...] of P columns, are further arguments of the
      call that reads the prefix; only of a network without `init_states`.
    num_cache_slots: number of sequences that a server of texts continues at
      once (continuous batching); 0 leaves it to the server. `decode` does not
      read it.
    precompute_kv_cache_prefix_ids: not supported, as all of `UNSUPPORTED`.

  Raises:
    UserError: a value has a wrong type or range.
  """

  UNSUPPORTED: ClassVar = {
    'lazy_prefix_broadcast': False,
    'precompute_kv_cache_prefix_ids': None,
  }

  seqlen: int = 0
  min_prefix_len: int = 5
  eos_id: int | Sequence[int] = 2
  min_decode_steps: int = 0
  max_decode_steps: int | Sequence[int] | None = None
  fprop_for_prefix: bool = False
  lazy_prefix_broadcast: bool = False
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None
  process_result_fn: ProcessResultFn | None = None
  emb_lookup_style: str = 'matmul'
  use_extra_input_kwargs: bool = False
  num_cache_slots: int = 0
  precompute_kv_cache_prefix_ids: Any = None

  def __post_init__(self):
    self._check_integer('seqlen', 0)
    self._check_integer('min_decode_steps', 0)
    self._check_integer('num_cache_slots', 0)
    steps = self.max_decode_steps
    if steps is not None and (
      not _are_integers(steps) or min(_several(steps)) < 1
    ):
      raise errors.wrong_field(
        self, 'max_decode_steps', 'an integer of at least 1, several, or None'
      )
    ids = self.eos_id
    if not _are_integers(ids):
      raise errors.wrong_field(
        self, 'eos_id', 'a token id (an integer), or several'
      )

  def _check_integer(self, name: str, least: int):
    value = getattr(self, name)
    if not isinstance(value, Integral) or value < least:
      raise errors.wrong_field(self, name, f'an integer of at least {least}')

  def _check_number(self, name: str, least: float, most: float):
    value = getattr(self, name)
    if not isinstance(value, Real) or not least <= value <= most:
      raise errors.wrong_field(self, name, f'a number from {least} to {most}')

  def clone(self) -> Self:
    """Returns a copy."""
    return copy.deepcopy(self)

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """The tokens that end a sequence."""
    return _several(self.eos_id)

  @property
  def decode_stages(self) -> tuple[int, ...]:
    """The numbers of `max_decode_steps` in ascending order; () for None."""
    if self.max_decode_steps is None:
      return ()
    return tuple(sorted(set(_several(self.max_decode_steps))))

  @property
  def last_decode_step(self) -> int | None:
    """The maximum number of steps; None if only `seqlen` limits them."""
    return max(self.decode_stages, default=None)

  def check_complete(self):
    """Raises a UserError unless all required settings are set."""
    self.check(
      self.seqlen > 0,
      f'seqlen is {self.seqlen}; expected a number above 0, the maximum number'
      ' of tokens of an output',
    )
    self.check(
      not self.fprop_for_prefix or self.max_decode_steps is not None,
      'max_decode_steps is None; expected a number, since fprop_for_prefix is'
      ' True',
    )
    self.check(
      not self.lazy_prefix_broadcast or self.fprop_for_prefix,
      'fprop_for_prefix is False; expected True, since lazy_prefix_broadcast is'
      ' True',
    )
    for name, default in self.UNSUPPORTED.items():
      value = getattr(self, name)
      self.check(
        value == default,
        f'{name} is {value!r}, which is not supported; expected {default!r}',
      )
    last = self.last_decode_step
    self.check(
      last is None or self.min_decode_steps <= last,
      f'min_decode_steps is {self.min_decode_steps}, above max_decode_steps,'
      f' {last}',
    )

  def check_vocabulary(self, vocab_size: int):
    """Raises a UserError if a token is not in a vocabulary.

    Args:
      vocab_size: the number of tokens.
    """
    for token in self.eos_ids:
      # Negative ones stand for no token.
      self.check(
        token < vocab_size,
        f'eos_id is {self.eos_id!r}; expected ids below {vocab_size}, the size'
        ' of the vocabulary',
      )


def _without_prefix(unsupported: dict[str, Any]) -> dict[str, Any]:
  """Returns settings that are not supported where samples share a prefix."""
  return {
    name: value
    for name, value in unsupported.items()
    if name != 'lazy_prefix_broadcast'
  }


class GreedyDecoderHParams(DecoderHParams):
  """Settings of greedy decoding: the most likely token in each step."""


class SampleDecoderHParams(DecoderHParams):
  """Settings of sampling.

  Fields of a batch override those of the same name for each example; see
  `sample_decode`.

  Attributes:
    num_samples: samples of each example, which share the prefix.
    temperature: divides the logits; 0 takes the most likely token.
    k: samples from the `k` most likely tokens; 0 from all.
    top_k_recall_target: below 1, the approximate top-k of TPUs.
    use_top_k_for_logprobs: whether log-probabilities are over the `k` tokens
      instead of the vocabulary.
    p: samples from the most likely tokens of this total probability, after
      `k`; None from all.
    next_token_sampler_tpl: samples a token by its logits.
    sample_constraint: ends samples early; a `BaseSampleTerminationConstraint`
      or its config, or None.
    global_normalize: see `token_samplers.apply_top_k_and_top_p`.
    cf_guidance_scale: the scale of classifier-free guidance, or one for each
      sample; None for no guidance. The model must prepare a batch of rows with
      and without the condition; see `sample_decode`.
    controlled_decoding: not supported.
    sort_samples: whether samples are sorted by their log-probability.
    override_next_token_sampler_params: whether `k`, `p`, `global_normalize`,
      `top_k_recall_target` and `use_top_k_for_logprobs` override the fields of
      `next_token_sampler_tpl`.
    optimize_eos: whether no end is sampled: a sample has the maximum length and
      is then ended where that is most likely.
    vanilla_sample_decode: whether to sample as Pax's `vanilla_sample_decode`:
      one sample, prefixes read in one step, unsorted results.
    early_exit: whether decoding ends as soon as all samples have ended.
  """

  UNSUPPORTED: ClassVar = {
    **_without_prefix(DecoderHParams.UNSUPPORTED),
    'controlled_decoding': None,
  }

  num_samples: int = 1
  temperature: float = 1.0
  k: int = 40
  top_k_recall_target: float = 1.0
  use_top_k_for_logprobs: bool = False
  p: float | None = None
  next_token_sampler_tpl: config_lib.Config = config_lib.sub_config_field(
    token_samplers.DefaultNextTokenSampler
  )
  sample_constraint: Any = None
  global_normalize: bool = False
  cf_guidance_scale: Sequence[float] | float | None = None
  controlled_decoding: Any = None
  sort_samples: bool | None = True
  override_next_token_sampler_params: bool = True
  optimize_eos: bool = False
  vanilla_sample_decode: bool = False
  early_exit: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._check_integer('num_samples', 1)
    self._check_integer('k', 0)
    self._check_number('temperature', 0, float('inf'))
    self._check_number('top_k_recall_target', 0, 1)
    if self.p is not None:
      self._check_number('p', 0, 1)

  def check_complete(self):
    super().check_complete()
    scales = self.cf_guidance_scale
    self.check(
      not isinstance(scales, Sequence) or len(scales) == self.num_samples,
      f'cf_guidance_scale has {len(_several(scales))} numbers; expected one, or'
      f' num_samples, {self.num_samples}',
    )
    for name in ('vanilla_sample_decode', 'optimize_eos'):
      self.check(
        not getattr(self, name) or self.fprop_for_prefix,
        f'fprop_for_prefix is False; expected True, since {name} is True',
      )
    self.check(
      not self.vanilla_sample_decode or self.num_samples == 1,
      f'num_samples is {self.num_samples}; expected 1, since'
      ' vanilla_sample_decode is True',
    )
    self.check(
      not (self.optimize_eos and self.use_top_k_for_logprobs),
      'use_top_k_for_logprobs and optimize_eos are True; expected one of them',
    )
    self.check(
      not self.min_decode_steps,
      f'min_decode_steps is {self.min_decode_steps}, which sampling does not'
      ' support; expected 0',
    )

  def next_token_sampler(self, **fields) -> token_samplers.BaseNextTokenSampler:
    """Returns the sampler of the next token.

    Args:
      **fields: its fields that depend on the batch.
    """
    if self.override_next_token_sampler_params:
      fields = {
        'top_k': self.k,
        'top_p': self.p,
        'global_normalize': self.global_normalize,
        'top_k_recall_target': self.top_k_recall_target,
        'use_top_k_for_logprobs': self.use_top_k_for_logprobs,
        **fields,
      }
    return self.next_token_sampler_tpl.clone().set(**fields).Instantiate()


class BeamSearchHParams(DecoderHParams):
  """Settings of beam search.

  Attributes:
    beam_size: number of hypotheses.
    tokens_per_beam: continuations of each hypothesis that are considered; None
      for `beam_size`.
    length_norm_alpha: the score of `t` tokens is their log-probability divided
      by ((t + 5) / 5) ** alpha.
    early_exit: whether ended hypotheses stay in the beam, and the search ends
      once all have ended.
    use_matmul_beam_shuffle: has no effect: hypotheses are always gathered.
    output_id_offset: added to tokens of the output.
  """

  UNSUPPORTED: ClassVar = _without_prefix(DecoderHParams.UNSUPPORTED)

  beam_size: int = 1
  tokens_per_beam: int | None = None
  length_norm_alpha: float = 0.8
  early_exit: bool = False
  use_matmul_beam_shuffle: bool = False
  output_id_offset: int = 0

  def __post_init__(self):
    super().__post_init__()
    self._check_integer('beam_size', 1)
    if self.tokens_per_beam is not None:
      self._check_integer('tokens_per_beam', 1)

  def check_complete(self):
    super().check_complete()
    self.check(
      self.max_decode_steps is not None,
      'max_decode_steps is None; expected a number, for beam search',
    )

  def check_vocabulary(self, vocab_size: int):
    super().check_vocabulary(vocab_size)
    name = 'tokens_per_beam' if self.tokens_per_beam else 'beam_size'
    tokens = self.tokens_per_beam or self.beam_size
    self.check(
      tokens <= vocab_size,
      f'{name} is {tokens}; expected at most {vocab_size}, the size of the'
      ' vocabulary',
    )


class FlatBeamSearchHParams(BeamSearchHParams):
  """Settings of flat beam search, which starts at the last prefix token."""

  def check_complete(self):
    super().check_complete()
    self.check(
      isinstance(self.eos_id, Integral),
      f'eos_id is {self.eos_id!r}; expected one token, for flat beam search',
    )


class PrunedBeamSearchHParams(BeamSearchHParams):
  """Settings of a beam search with pruning, as of Lingvo's `BeamSearchHelper`.

  See https://arxiv.org/abs/1609.08144, section 7. Lingvo's `num_hyps_per_beam`
  is `beam_size` here, its `length_normalization` is `length_norm_alpha`, and
  its `beam_size` is `max_score_gap`. Scores below are log-probabilities of
  hypotheses, and the prefix is read in one step.

  Attributes:
    max_score_gap: a row's search ends when all hypotheses of the beam have
      scores this much below the best one that has ended.
    valid_eos_max_logit_delta: a hypothesis ends only if the score with the end
      is less than this below that with the most likely token.
    local_eos_threshold: the log-probability that the end must exceed.
    coverage_penalty: beta of equation 14; a hypothesis is penalized for source
      positions without attention. Only for networks with the decode state
      `source_coverage`.
    target_seq_length_ratio: the mean length of targets divided by that of
      sources, for the coverage penalty.
    ensure_full_beam: whether the search of a row also goes on until `beam_size`
      hypotheses have ended.
    force_eos_in_last_step: whether all hypotheses end in the last step.
    force_eos_in_top_k: whether hypotheses may end although the end is not
      among the `beam_size + 1` most likely tokens.
    terminate_beams_independently: whether a row keeps its result once its
      search has ended. By default it goes on until those of all rows have.
  """

  fprop_for_prefix: bool = True
  early_exit: bool = True
  length_norm_alpha: float = 0.0
  max_score_gap: float = 3.0
  valid_eos_max_logit_delta: float = 5.0
  local_eos_threshold: float = -100.0
  coverage_penalty: float = 0.0
  target_seq_length_ratio: float = 1.0
  ensure_full_beam: bool = False
  force_eos_in_last_step: bool = False
  force_eos_in_top_k: bool = False
  terminate_beams_independently: bool = False

  def check_complete(self):
    super().check_complete()
    self.check(
      isinstance(self.eos_id, Integral) and self.eos_id >= 0,
      f'eos_id is {self.eos_id!r}; expected one token, for a pruned search',
    )
    for name, expected in (
      ('fprop_for_prefix', True),
      ('early_exit', True),
      ('tokens_per_beam', None),
      ('output_id_offset', 0),
      ('min_decode_steps', 0),
    ):
      value = getattr(self, name)
      self.check(
        value == expected,
        f'{name} is {value!r}; expected {expected!r}, for a pruned search',
      )
    self.check(
      isinstance(self.max_decode_steps, Integral),
      f'max_decode_steps is {self.max_decode_steps!r}; expected one number, for'
      ' a pruned search',
    )

  def check_vocabulary(self, vocab_size: int):
    super().check_vocabulary(vocab_size)
    self.check(
      self.beam_size < vocab_size,
      f'beam_size is {self.beam_size}; expected less than {vocab_size}, the'
      ' size of the vocabulary',
    )


def _several(values: Any) -> tuple:
  """Returns one or several values as a tuple."""
  if isinstance(values, Sequence):
    return tuple(values)
  return (values,)


def _are_integers(values: Any) -> bool:
  """Whether this is an integer, or a sequence of at least one."""
  if isinstance(values, str):
    return False
  several = _several(values)
  return bool(several) and all(isinstance(v, Integral) for v in several)
