"""What evaluations and decodings print, and where their examples are written.

Evaluations while training and those of separate jobs have the same forms.
"""

import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from pax_compat.trainer import profiling, program
from pax_compat.trainer.evaluating import batch_results

# Metrics of an evaluation that are printed, if they exist.
_PRINTED = (
  'loss',
  'log_pplx',
  'fraction_of_correct_next_step_preds',
  'accuracy',
)

# How many metrics of a decoding are printed.
_MAX_PRINTED = 4


def eval_line(
  step: int, name: str, values: Mapping[str, Any], *, loss: str
) -> str:
  """Returns a line for the user about an evaluation.

  Args:
    step: the number of train steps.
    name: of the dataset.
    values: the result of `evaluation.evaluate`.
    loss: name of the loss.
  """
  found = batch_results.numbers(values)
  names = dict.fromkeys((loss, *_PRINTED))
  return _line(step, 'eval', name, {k: found[k] for k in names if k in found})


def decode_line(step: int, name: str, values: Mapping[str, Any]) -> str:
  """Returns a line for the user about a decoding; see `eval_line`."""
  found = batch_results.numbers(values).items()
  return _line(
    step, 'decode', name, dict(itertools.islice(found, _MAX_PRINTED))
  )


def eval_path(
  folder: pathlib.Path, task: Any, name: str, step: int
) -> pathlib.Path | None:
  """Returns the file of this process's per-example outputs; None for none.

  Args:
    folder: of the run.
    task: the task.
    name: of the dataset.
    step: the number of train steps.
  """
  if not task.evaluate.write_per_example_out:
    return None
  file = f'eval_out_{step}_shard_{jax.process_index()}.jsonl'
  return folder / 'eval_out' / name / file


def decode_path(folder: pathlib.Path, name: str, step: int) -> pathlib.Path:
  """Returns the file of the decoded examples; see `eval_path`."""
  return folder / 'decode_out' / name / f'decode_out_{step}_shard_0.jsonl'


def decode_profile(
  folder: pathlib.Path, task_program: program.TaskProgram, split: str
) -> profiling.Profile | None:
  """Returns the profile of a decoding that its task asks for, None for none.

  Args:
    folder: of the run.
    task_program: has the task.
    split: name of the folder in `summaries`.
  """
  decode = task_program.task.decode
  if not decode.profiler_num_steps:
    return None
  return profiling.Profile(
    folder=folder / 'summaries' / split,
    first_step=decode.profiler_capture_step,
    num_steps=decode.profiler_num_steps,
    min_seconds=decode.profiler_min_duration_sec,
    max_num_hosts=decode.profiler_max_num_hosts,
  )


def _line(step: int, kind: str, name: str, printed: dict[str, float]) -> str:
  shown = '  '.join(f'{k} {v:.4f}' for k, v in printed.items())
  return f'step {step}  {kind} {name}: {shown}'
