"""Which files of a record-based Lingvo input each host reads.

Lingvo's readers of records read all files on every host, in another order where
the seeds differ, so that hosts see the same examples now and then. Hosts that
read different files never do.
"""

from typing import Any

from absl import logging

from adaptors import lingvo_input_checks, lingvo_input_driver

# What has a meaning of its own in a pattern, and so must not be in a path.
_SPECIAL = set(',;@*?[')


def split_files(name: str, params: Any, hosts: int, host: int):
  """Leaves an input the files of one host, where there are enough of them.

  Of each reader's files, in the order of their names, the i-th is of host i
  modulo `hosts`. What is done is logged.

  Args:
    name: how messages call the input.
    params: Lingvo Params; changed. Those of a tf.data input are not: it is told
      which host it is for.
    hosts: how many read.
    host: which of them is asked.

  Raises:
    UserError: a pattern matches no file.
  """
  if lingvo_input_driver.is_tf_data(params):
    return
  readers = lingvo_input_checks.readers(params)
  files = [
    [lingvo_input_checks.files_of(name, entry) for entry in entries]
    for _, entries in readers
  ]
  every = [paths for of_node in files for paths in of_node]
  if not every or not all(every):
    return  # It reads no files.
  fewest = min(map(len, every))
  if fewest < hosts or any(_SPECIAL & set(p) for paths in every for p in paths):
    logging.warning(
      '%s: each of %d hosts reads all %d files, in an order of its own, and'
      ' they will see common examples; with as many files as hosts they do not',
      name,
      hosts,
      sum(map(len, every)),
    )
    return
  for (node, entries), of_node in zip(readers, files, strict=True):
    own = [
      _as_entry(entry, paths[host::hosts])
      for entry, paths in zip(entries, of_node, strict=True)
    ]
    _set_entries(node, own)
  logging.info(
    '%s: host %d of %d reads %d of %d files',
    name,
    host,
    hosts,
    sum(len(paths[host::hosts]) for paths in every),
    sum(map(len, every)),
  )


def _as_entry(entry: str, paths: list[str]) -> str:
  """Returns an entry of the same type with these files."""
  rest = lingvo_input_checks.split_type(entry)[1]
  return entry.removesuffix(rest) + ','.join(paths)


def _set_entries(params: Any, entries: list[str]):
  """Sets the patterns of one data source, weights and the like kept."""
  pattern = params.file_pattern
  if getattr(params, 'file_pattern_prefix', ''):
    params.file_pattern_prefix = ''
  if isinstance(pattern, str):
    [params.file_pattern] = entries
  elif len(entries) < len(pattern):  # One reader has them all.
    params.file_pattern = entries
  else:
    params.file_pattern = [
      own if isinstance(old, str) else type(old)([own, *old[1:]])
      for old, own in zip(pattern, entries, strict=True)
    ]
