"""Trains the shipped examples and holds their curves against recorded ones.

    python -m benchmarks.convergence text_bytes
    python -m benchmarks.convergence            # all of them: a nightly check

Each run is made by its command, in a temporary folder. At each recorded step
the metric must lie within the band, or the program prints where it does not and
exits with status 1.

    python -m benchmarks.convergence --record --seeds=3 text_bytes

trains with several seeds and writes the band: their mean, plus and minus three
times their largest deviation from it, at least `MIN_BAND` of the mean. With
`--page` it writes docs/results.md from what is recorded.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = _ROOT / 'testdata/convergence'
PAGE = _ROOT / 'docs/results.md'
MIN_BAND = 0.02  # of the mean


@dataclasses.dataclass(frozen=True)
class Example:
  """A run that a user can repeat.

  Attributes:
    what: the run, in a few words.
    flags: the flags of `pax_compat.main`.
    split: of the metric, as in `metrics.jsonl`.
    metric: its name.
    most: the largest value that it can have.
  """

  what: str
  flags: str
  split: str
  metric: str = 'loss'
  most: float = math.inf


EXAMPLES = {
  'first_run': Example(
    "the README's first run: a Lingvo Transformer on Python's documentation",
    '--exp=lm.python_docs.TransformerLmTiny',
    'eval_Dev',
  ),
  'text_bytes': Example(
    "a language model of bytes on Python's documentation, without TensorFlow",
    '--exp=tasks.lm.params.text_bytes.TextBytes',
    'eval_dev',
  ),
  'drawn_digits': Example(
    'a small ResNet on drawn digits',
    '--exp=tasks.vision.params.digits.DrawnDigits',
    'eval_test',
    'accuracy',
    most=1.0,
  ),
  'python_lines': Example(
    'a Transformer that classifies lines as code or text',
    '--exp=tasks.lm.params.python_lines.PythonLines',
    'eval_test',
    'accuracy',
    most=1.0,
  ),
  'number_words': Example(
    'an encoder-decoder that translates numbers, by beam search',
    '--exp=tasks.lm.params.number_words.NumberWords',
    'decode_test',
    'decoder/exact_match',
    most=1.0,
  ),
}


def curve(lines: Sequence[str], split: str, metric: str) -> dict[int, float]:
  """Returns the values of a metric by step.

  Args:
    lines: of a `metrics.jsonl`.
    split: for example `train` or `eval_dev`.
    metric: its name.
  """
  found = {}
  for row in map(json.loads, lines):
    if (row['split'], row['name']) == (split, metric):
      found[row['step']] = row['value']
  return found


def band(
  curves: Sequence[Mapping[int, float]], *, most: float = math.inf
) -> dict[int, list[float]]:
  """Returns the lower and upper bound at each step that all curves have.

  Args:
    curves: values by step.
    most: the largest upper bound.
  """
  bounds = {}
  for step in sorted(set.intersection(*map(set, curves))):
    values = [one[step] for one in curves]
    mean = sum(values) / len(values)
    spread = max(abs(value - mean) for value in values)
    width = max(3 * spread, MIN_BAND * abs(mean))
    bounds[step] = [round(mean - width, 4), round(min(mean + width, most), 4)]
  return bounds


def outside(
  found: Mapping[int, float], bounds: Mapping[int, Sequence[float]]
) -> list[str]:
  """Returns a line for each recorded step whose value is missing or outside."""
  lines = []
  for step, (low, high) in bounds.items():
    value = found.get(step)
    if value is None:
      lines.append(f'step {step}: no value')
    elif not low <= value <= high:
      lines.append(f'step {step}: {value:.4f} is not within {low} to {high}')
  return lines


def recorded(name: str) -> dict:
  """Returns what is recorded of an example; steps are numbers again."""
  text = json.loads((FOLDER / f'{name}.json').read_text('utf-8'))
  text['bounds'] = {int(step): b for step, b in text['bounds'].items()}
  return text


def train(example: Example, seed: int | None = None) -> dict[int, float]:
  """Trains an example and returns its curve.

  Args:
    example: what to run.
    seed: of initial weights and random numbers; None for that of the example.

  Raises:
    subprocess.CalledProcessError: a command failed.
  """
  with tempfile.TemporaryDirectory() as scratch:
    flags = f'{example.flags} --job_log_dir={scratch}/run'
    if seed is not None:
      flags += f' --set=task.train.random_seed={seed}'
    _run(f'pax_compat.main {flags}')
    lines = pathlib.Path(scratch, 'run/metrics.jsonl').read_text('utf-8')
  return curve(lines.splitlines(), example.split, example.metric)


def _run(command: str):
  subprocess.run([sys.executable, '-m', *command.split()], check=True)


def _record(name: str, seeds: int):
  """Trains an example with several seeds and writes the band of its curves."""
  begun = time.time()
  curves = [train(EXAMPLES[name], seed) for seed in range(1, seeds + 1)]
  content = dict(
    seeds=seeds,
    minutes=round((time.time() - begun) / 60 / seeds, 1),
    bounds=band(curves, most=EXAMPLES[name].most),
  )
  FOLDER.mkdir(exist_ok=True)
  text = json.dumps(content, indent=1)
  (FOLDER / f'{name}.json').write_text(text + '\n', 'utf-8')


def page() -> str:
  """Returns docs/results.md: a table of what is recorded, and the commands."""
  lines = [
    '# Results',
    '',
    'What the shipped examples reach, and within which band a run must stay.'
    ' Made by `python -m benchmarks.convergence --page`; the bands are in',
    '`testdata/convergence`, from runs with several seeds on two CPU cores.'
    ' `python -m benchmarks.convergence` trains all of them again, and exits',
    'with status 1 if a curve leaves its band: a nightly check.',
  ]
  for name, example in EXAMPLES.items():
    if not (FOLDER / f'{name}.json').is_file():
      continue
    found = recorded(name)
    what = example.what[0].upper() + example.what[1:]
    lines += ['', f'## {what}', '', '```bash']
    lines += [
      f'python -m pax_compat.main {example.flags} --job_log_dir=runs/{name}'
    ]
    lines += ['```', '']
    lines.append(
      f'{found["seeds"]} seeds. `{example.metric}` of `{example.split}`:'
    )
    lines += ['', '| step | from | to |', '|---|---|---|']
    for step, (low, high) in found['bounds'].items():
      lines.append(f'| {step} | {low} | {high} |')
  return '\n'.join(lines) + '\n'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('names', nargs='*', help=f'of {", ".join(EXAMPLES)}')
  parser.add_argument('--record', action='store_true', help='Write the bands.')
  parser.add_argument('--seeds', type=int, default=3, help='With --record.')
  parser.add_argument('--page', action='store_true', help='Write the page.')
  arguments = parser.parse_args(argv)
  unknown = set(arguments.names) - set(EXAMPLES)
  if unknown:
    parser.error(
      f'unknown: {", ".join(unknown)}; expected {", ".join(EXAMPLES)}'
    )
  names = arguments.names or list(EXAMPLES)
  wrong = []
  for name in () if arguments.page and not arguments.names else names:
    if arguments.record:
      _record(name, arguments.seeds)
    elif (FOLDER / f'{name}.json').is_file():
      found = outside(train(EXAMPLES[name]), recorded(name)['bounds'])
      print(name, 'is within its band' if not found else 'LEFT its band')
      wrong += [f'{name}, {line}' for line in found]
    else:
      print(name, 'has no recorded band; --record makes one')
  if arguments.page:
    PAGE.write_text(page(), 'utf-8')
  print('\n'.join(wrong))
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main())
