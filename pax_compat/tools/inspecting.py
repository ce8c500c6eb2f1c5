"""Inspection of a dataset: its first batches, and how hosts share it.

Shapes: B batch, T time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import fiddle as fdl
import numpy as np

from pax_compat import base_input, errors
from pax_compat import config as config_lib
from pax_compat.input_core import example_rows, host_fields
from pax_compat.inputs import multi_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import gathering

# Names of fields with tokens, after the last dot.
_TOKENS = ('ids', 'labels', 'targets', 'inputs', 'tokens', 'input_ids')
# Maximum number of characters shown of a string, tokens apart.
_LONG = 200


@dataclasses.dataclass(frozen=True)
class Tokens:
  """A field of tokens in a batch.

  Attributes:
    field: its dotted name.
    ids: [B, T].
    is_token: [B, T], False at padding.
    segments: [B, T], segment ids of packed sequences; None if not packed.
    texts: B strings.
    pieces: B lists of T strings, one of each token.
  """

  field: str
  ids: np.ndarray
  is_token: np.ndarray
  segments: np.ndarray | None
  texts: list[str]
  pieces: list[list[str]]


@dataclasses.dataclass(frozen=True)
class Batch:
  """The shown fields of a batch.

  Attributes:
    tokens: its fields of tokens.
    scalars: its fields of one number or string for each example, as B strings
      by dotted name.
    weights: [B], example weights.
  """

  tokens: list[Tokens]
  scalars: Mapping[str, list[str]]
  weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shards:
  """The examples that several hosts read.

  Attributes:
    hosts: number of hosts.
    batches: number of batches of each host.
    examples: number of different examples of all hosts.
    shared: number of examples that more than one host read.
    repeated: number of examples that one host read more than once.
    excess: number of examples that all hosts together read beyond those of one
      host that reads all data; None if they did not reach its end.
    missing: number of examples that only that one host read; None as `excess`.
  """

  hosts: int
  batches: tuple[int, ...]
  examples: int
  shared: int
  repeated: int
  excess: int | None = None
  missing: int | None = None


@dataclasses.dataclass(frozen=True)
class Dataset:
  """The results of inspecting a dataset.

  Attributes:
    config: its config.
    specs: shape and dtype of each leaf of the first batch, by dotted name.
    batches: the first batches.
    tokenizers: descriptions by name.
    shards: the examples of several hosts; None for a single host.
    warnings: problems of the data.
  """

  config: config_lib.Config
  specs: Mapping[str, tuple[tuple[int, ...], str]]
  batches: list[Batch]
  tokenizers: Mapping[str, str]
  shards: Shards | None
  warnings: list[str]


def with_children(config: config_lib.Config) -> list[config_lib.Config]:
  """Returns the config of a dataset, and of the inputs that it reads from.

  The inputs of a `MultiInput` are also inspected separately: side by side they
  have no rows in common that could be shown.
  """
  if not issubclass(fdl.get_callable(config), multi_input.MultiInput):
    return [config]
  return [config, *multi_input.child_configs(config).values()]


def inspect(
  config: config_lib.Config,
  *,
  batches: int,
  hosts: int,
  shard_batches: int,
) -> Dataset:
  """Reads the first batches of a dataset, on one host and on several.

  Args:
    config: of a `BaseInput`.
    batches: number of batches to show.
    hosts: number of simulated hosts; 1 for no comparison.
    shard_batches: maximum number of batches compared of each host.

  Raises:
    UserError: the dataset cannot be built, or has no batch.
  """
  with _built(config) as data:
    stream = _batches(data)
    read = list(itertools.islice(stream, batches))
    if not read:
      raise errors.UserError(f'the dataset {config.name!r} has no batch')
    shown = [_shown(data, batch) for batch in read]
    tokenizers = data.tokenizers()
    shards = None
    if hosts > 1:
      one_host = itertools.chain(read, stream)
      shards = _shards(config, hosts, shard_batches, one_host)
  return Dataset(
    config=config,
    specs={
      name: (np.shape(x), str(np.asarray(x).dtype))
      for name, x in read[0].flatten_items()
    },
    batches=shown,
    tokenizers=tokenizers,
    shards=shards,
    warnings=_warnings(shown, shards),
  )


def different_tokenizers(found: Sequence[Dataset]) -> list[str]:
  """Returns warnings about datasets with different tokenizers."""
  by_name = collections.defaultdict(dict)
  for dataset in found:
    for name, description in dataset.tokenizers.items():
      by_name[name].setdefault(description, []).append(dataset.config.name)
  return [
    f'the tokenizer {name or "(without a name)"} differs between '
    + ' and '.join(', '.join(names) for names in variants.values())
    for name, variants in by_name.items()
    if len(variants) > 1
  ]


@contextlib.contextmanager
def _built(config, **fields) -> Iterator[base_input.BaseInput]:
  data = config.Instantiate(**fields)
  with contextlib.closing(data):
    yield data


def _batches(data: base_input.BaseInput) -> Iterator[NestedMap]:
  while True:
    try:
      yield data.get_next_padded()
    except StopIteration:
      return


def _shown(data, batch: NestedMap) -> Batch:
  fields = {name: np.asarray(x) for name, x in batch.flatten_items()}
  weights = _weights(batch)
  return Batch(
    tokens=[
      _tokens(data, name, x, fields)
      for name, x in fields.items()
      if name.rpartition('.')[2] in _TOKENS
      and x.ndim == 2
      and np.issubdtype(x.dtype, np.integer)
    ],
    scalars={
      name: [_shortened(one) for one in x.flat]
      for name, x in fields.items()
      if x.shape[:1] == weights.shape == (x.size,) and not _is_weight(name)
    },
    weights=weights,
  )


def _is_weight(name: str) -> bool:
  return name.rpartition('.')[2] == example_rows.WEIGHTS


def _shortened(value) -> str:
  """Returns the start of a string, or a number."""
  if isinstance(value, bytes):
    value = value.decode('utf-8', 'replace')
  text = f'{value:g}' if isinstance(value, np.floating) else str(value)
  return text if len(text) <= _LONG else text[: _LONG - 3] + '...'


def _tokens(data, name: str, ids: np.ndarray, fields: Mapping) -> Tokens:
  parent = name.rpartition('.')[0]

  def sibling(*names: str) -> np.ndarray | None:
    for one in names:
      x = fields.get(f'{parent}.{one}' if parent else one)
      if np.shape(x) == ids.shape:
        return np.asarray(x)
    return None

  paddings, weights = sibling('paddings'), sibling('weights')
  segments = sibling('segment_ids')
  if paddings is not None:
    is_token = paddings == 0
  elif weights is not None:
    is_token = weights != 0
  elif segments is not None:
    is_token = segments != 0
  else:
    is_token = np.ones(ids.shape, bool)
  # Up to the last token; masked positions may be before it.
  lengths = ids.shape[1] - np.argmax(is_token[:, ::-1], axis=1)
  lengths = np.where(is_token.any(axis=1), lengths, 0)
  rows, length = ids.shape
  singles = np.reshape(ids, [-1, 1])
  pieces = _decoded(data, singles, np.ones(len(singles), np.int32), parent)
  return Tokens(
    field=name,
    ids=ids,
    is_token=is_token,
    segments=segments,
    texts=_decoded(data, ids, lengths.astype(np.int32), parent),
    pieces=[pieces[i * length : (i + 1) * length] for i in range(rows)],
  )


def _decoded(data, ids, lengths, key: str) -> list[str]:
  """Returns strings, or numbers if the input has no tokenizer for them."""
  for tried in filter(None, (key, None)) if key else (None,):
    try:
      return list(data.ids_to_strings(ids, lengths, tried))
    except errors.UserError:
      continue
  return base_input.BaseInput.ids_to_strings(data, ids, lengths)


def _weights(batch: NestedMap) -> np.ndarray:
  weights = gathering.example_weights(batch)
  if weights is not None and weights.ndim == 1:
    return np.asarray(weights)
  return np.ones(example_rows.num_rows(batch))


def _shards(
  config, hosts: int, limit: int, one_host: Iterable[NestedMap]
) -> Shards:
  """Compares the examples of several hosts, read one after the other.

  Args:
    config: of the dataset.
    hosts: number of hosts.
    limit: maximum number of batches of each host.
    one_host: the batches of one host that reads all data.
  """
  seen, counts = [], []
  for host in range(hosts):
    with _built(config, num_infeed_hosts=hosts, infeed_host_index=host) as data:
      found, count = _counted(itertools.islice(_batches(data), limit))
    seen.append(found)
    counts.append(count)
  together = sum(seen, collections.Counter())
  whole = {}
  if max(counts) < limit:
    # An example may be in the data twice, as one host reads it.
    of_one, _ = _counted(itertools.islice(one_host, sum(counts) + 1))
    whole['excess'] = (together - of_one).total()
    whole['missing'] = (of_one - together).total()
  return Shards(
    hosts=hosts,
    batches=tuple(counts),
    examples=len(together),
    shared=sum(sum(one in found for found in seen) > 1 for one in together),
    repeated=len({one for found in seen for one in found if found[one] > 1}),
    **whole,
  )


def _counted(batches: Iterable[NestedMap]) -> tuple[collections.Counter, int]:
  """Returns the count of each example in batches, and the batch count."""
  seen, count = collections.Counter(), 0
  for batch in batches:
    count += 1
    seen.update(_digests(batch))
  return seen, count


def _digests(batch: NestedMap) -> Iterator[bytes]:
  """Yields a digest of each example with a weight above 0."""
  weights = _weights(batch)
  leaves = [
    np.asarray(x)
    for name, x in batch.flatten_items()
    if not _is_weight(name) and np.shape(x)[:1] == weights.shape
  ]
  for row in np.flatnonzero(weights):
    digest = hashlib.blake2b(digest_size=16)
    for leaf in leaves:
      digest.update(host_fields.canonical_bytes(np.asarray(leaf[row])))
    yield digest.digest()


def _warnings(shown: list[Batch], shards: Shards | None) -> list[str]:
  problems = []
  for batch in shown:
    for tokens in batch.tokens:
      if (tokens.ids < 0).any():
        problems.append(f'{tokens.field} has negative ids')
      if not tokens.is_token.any():
        problems.append(f'{tokens.field} has a batch that is padding only')
  if not any(batch.weights.any() for batch in shown):
    problems.append('all examples of the first batches have weight 0')
  if shards is not None:
    problems += _of_shards(shards)
  return list(dict.fromkeys(problems))


def _of_shards(shards: Shards) -> list[str]:
  problems = []
  if shards.excess:
    problems.append(
      f'{shards.hosts} hosts together read {shards.excess} more examples than'
      ' one host that reads all data'
    )
  if shards.missing:
    problems.append(
      f'{shards.missing} examples of the data are read by none of'
      f' {shards.hosts} hosts'
    )
  # Examples that are in the data twice may be read by one host or by two.
  if shards.excess is None and shards.shared > shards.hosts * shards.repeated:
    problems.append(
      f'{shards.shared} of {shards.examples} examples are read by more than'
      f' one of {shards.hosts} hosts'
    )
  if len(set(shards.batches)) > 1:
    problems.append(
      'hosts have different numbers of batches: '
      + ', '.join(map(str, shards.batches))
    )
  return problems
