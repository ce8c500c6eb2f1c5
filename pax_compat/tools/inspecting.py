"""What is found out about a dataset by reading it.

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

# Last parts of the names of fields that hold tokens.
_TOKENS = ('ids', 'labels', 'targets', 'inputs', 'tokens', 'input_ids')
# Characters of a text, beside tokens, that are shown at most.
_LONG = 200


@dataclasses.dataclass(frozen=True)
class Tokens:
  """A field of a batch that holds tokens.

  Attributes:
    field: its dotted name.
    ids: [B, T].
    counts: [B, T], which positions are no padding.
    segments: [B, T], which of several packed sequences a position is of; None
      where they are not packed.
    texts: B texts.
    pieces: B lists of T texts, one of each token.
  """

  field: str
  ids: np.ndarray
  counts: np.ndarray
  segments: np.ndarray | None
  texts: list[str]
  pieces: list[list[str]]


@dataclasses.dataclass(frozen=True)
class Batch:
  """What is shown of a batch.

  Attributes:
    tokens: its fields that hold tokens.
    singles: its fields that hold one number or text for each example, as B
      texts by dotted name.
    weights: [B], what examples weigh.
  """

  tokens: list[Tokens]
  singles: Mapping[str, list[str]]
  weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shards:
  """What several hosts have read.

  Attributes:
    hosts: how many there were.
    batches: how many batches each gave.
    examples: different examples of all of them.
    shared: examples that more than one host has read.
    repeated: examples that one host has read more than once.
    excess: how many more examples all hosts together have read than one host
      that reads all of the data; None where they did not come to its end.
    missing: how many examples only that one host has read; as `excess`.
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
  """What is found out about a dataset.

  Attributes:
    config: its config.
    specs: shape and dtype of each leaf of the first batch, by dotted name.
    batches: the first batches.
    tokenizers: descriptions by name.
    shards: what several hosts read; None if they were not tried.
    warnings: what is to be said against the data.
  """

  config: config_lib.Config
  specs: Mapping[str, tuple[tuple[int, ...], str]]
  batches: list[Batch]
  tokenizers: Mapping[str, str]
  shards: Shards | None
  warnings: list[str]


def parts(config: config_lib.Config) -> list[config_lib.Config]:
  """Returns the config of a dataset, and of those that are read in it.

  Those of a `MultiInput` are looked at one by one, too: side by side they have
  no rows in common that could be shown.
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
  """Reads the first batches of a dataset, as the first and as several hosts.

  Args:
    config: of a `BaseInput`.
    batches: how many are to be shown.
    hosts: how many hosts are tried; 1 for none.
    shard_batches: how many batches of each host are compared at most.

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
      alone = itertools.chain(read, stream)
      shards = _shards(config, hosts, shard_batches, alone)
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
  """Says which datasets of an experiment make tokens in different ways."""
  by_name = collections.defaultdict(dict)
  for dataset in found:
    for name, description in dataset.tokenizers.items():
      by_name[name].setdefault(description, []).append(dataset.config.name)
  return [
    f'the tokenizer {name or "(of no name)"} is another one in '
    + ' than in '.join(', '.join(names) for names in ways.values())
    for name, ways in by_name.items()
    if len(ways) > 1
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
    singles={
      name: [_told(one) for one in x.flat]
      for name, x in fields.items()
      if x.shape[:1] == weights.shape == (x.size,) and not _is_weight(name)
    },
    weights=weights,
  )


def _is_weight(name: str) -> bool:
  return name.rpartition('.')[2] == example_rows.WEIGHTS


def _told(value) -> str:
  """Returns the start of a text, or a number."""
  if isinstance(value, bytes):
    value = value.decode('utf-8', 'replace')
  text = f'{value:g}' if isinstance(value, np.floating) else str(value)
  return text if len(text) <= _LONG else text[: _LONG - 3] + '...'


def _tokens(data, name: str, ids: np.ndarray, fields: Mapping) -> Tokens:
  parent = name.rpartition('.')[0]

  def beside(*siblings: str) -> np.ndarray | None:
    for one in siblings:
      x = fields.get(f'{parent}.{one}' if parent else one)
      if np.shape(x) == ids.shape:
        return np.asarray(x)
    return None

  paddings, weights = beside('paddings'), beside('weights')
  segments = beside('segment_ids')
  if paddings is not None:
    counts = paddings == 0
  elif weights is not None:
    counts = weights != 0
  elif segments is not None:
    counts = segments != 0
  else:
    counts = np.ones(ids.shape, bool)
  # Up to the last position that counts; masked ones may lie before it.
  lengths = ids.shape[1] - np.argmax(counts[:, ::-1], axis=1)
  lengths = np.where(counts.any(axis=1), lengths, 0)
  rows, length = ids.shape
  singles = np.reshape(ids, [-1, 1])
  pieces = _decoded(data, singles, np.ones(len(singles), np.int32), parent)
  return Tokens(
    field=name,
    ids=ids,
    counts=counts,
    segments=segments,
    texts=_decoded(data, ids, lengths.astype(np.int32), parent),
    pieces=[pieces[i * length : (i + 1) * length] for i in range(rows)],
  )


def _decoded(data, ids, lengths, key: str) -> list[str]:
  """Returns texts, or numbers where the input cannot make texts."""
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
  config, hosts: int, limit: int, alone: Iterable[NestedMap]
) -> Shards:
  """Reads as several hosts do, one after the other.

  Args:
    config: of the dataset.
    hosts: how many.
    limit: how many batches of each are read at most.
    alone: the batches of one host that reads all of the data.
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
    # An example may be in the data twice; only one host alone can tell.
    of_one, _ = _counted(itertools.islice(alone, sum(counts) + 1))
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
  """Returns how often each example is in batches, and how many these are."""
  seen, count = collections.Counter(), 0
  for batch in batches:
    count += 1
    seen.update(_digests(batch))
  return seen, count


def _digests(batch: NestedMap) -> Iterator[bytes]:
  """Yields a digest of each example that counts."""
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
  told = []
  for batch in shown:
    for tokens in batch.tokens:
      if (tokens.ids < 0).any():
        told.append(f'{tokens.field} has negative ids')
      if not tokens.counts.any():
        told.append(f'{tokens.field} has a batch that is padding only')
  if not any(batch.weights.any() for batch in shown):
    told.append('no example of the first batches weighs anything')
  if shards is not None:
    told += _of_shards(shards)
  return list(dict.fromkeys(told))


def _of_shards(shards: Shards) -> list[str]:
  told = []
  if shards.excess:
    told.append(
      f'{shards.hosts} hosts together read {shards.excess} more examples than'
      ' one host that reads all of the data'
    )
  if shards.missing:
    told.append(
      f'{shards.missing} examples that one host reads, which reads all of the'
      f' data, none of {shards.hosts} hosts reads'
    )
  # Equal examples of the data are met by one host as often as by two.
  if shards.excess is None and shards.shared > shards.hosts * shards.repeated:
    told.append(
      f'{shards.shared} of {shards.examples} examples are read by more than'
      f' one of {shards.hosts} hosts'
    )
  if len(set(shards.batches)) > 1:
    told.append(
      'hosts give different numbers of batches: '
      + ', '.join(map(str, shards.batches))
    )
  return told
