"""Compares a Lingvo experiment with its translation, layer by layer.

    python -m adaptors.lingvo_parity --exp=lm.python_docs.TransformerLmTiny

Lingvo and the translation run from the same weights, on the same first batches
of the experiment's training input. It compares the output of each layer, the
loss, the metrics at evaluation, the gradient of each weight, and the losses of
training steps, with optimizer and schedule. Randomness (dropout, sampled
classes) is off, or all ops that draw random numbers get the same fixed ones in
both; what stays random is named, and not compared. Lingvo has a process of its
own, without oneDNN, which corrupts the memory of its recurrent layers.

Exits with 0 if everything agrees; with 1 if something departs, naming the first
layer that does, or is random; with 2 if a flag is invalid; with 3 if Lingvo
itself fails.

Stock experiments are large and need their data files: with --shrink --synthetic
they run on any machine.
"""

import sys

from absl import flags

from adaptors.lingvo_parity import lingvo_process
from pax_compat import experiment_sources
from pax_compat.cli import command_line, experiment_flags
from pax_compat.experiments import experiment_overrides

flags.adopt_module_key_flags(experiment_flags)

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'A TensorFlow checkpoint that Lingvo wrote, or the folder of a run, with the'
  ' initial weights. By default Lingvo initializes them.',
)
_STEPS = flags.DEFINE_integer(
  'steps', 20, 'Steps of training; 0 for none.', lower_bound=0
)
_SHRINK = flags.DEFINE_bool(
  'shrink',
  False,
  'Reduce the model to a size that runs anywhere: its dimensions, layers and'
  ' vocabulary, but not its structure. Batches are truncated to fit.',
)
_SYNTHETIC = flags.DEFINE_bool(
  'synthetic',
  False,
  "Use random batches with the fields and shapes of the experiment's input,"
  ' whose files are not read.',
)
_TOLERANCE = flags.DEFINE_float(
  'tolerance',
  1e-5,
  'Largest relative difference of outputs, losses and metrics. Gradients, and'
  ' losses after the first step, may differ by ten times as much.',
  lower_bound=0,
)


# The exit status if Lingvo fails.
_LINGVO_FAILED = 3


def main(argv: list[str]) -> int:
  """Runs the comparison; returns the exit status."""
  command_line.no_arguments(argv)
  name = experiment_flags.name()
  with lingvo_process.LingvoProcess(_run_lingvo) as lingvo:
    experiment = _found(name)
    # JAX and flax take seconds to import; a wrong name is reported before.
    from adaptors.lingvo_parity import reporting, running

    def lingvos(is_bridged: bool) -> running.LingvoResults:
      lingvo.begin(is_bridged)
      return lingvo.result()

    try:
      compared = running.run(
        experiment, name, _options(), lingvos, print_line=_print_line
      )
    except lingvo_process.LingvoFailedError as error:
      # Some sizes follow from others only in the code of the experiment.
      hint = '; --shrink changed its sizes: expected it without'
      text = f'error: {error}{hint if _SHRINK.value else ""}'
      print(text, file=sys.stderr)
      return _LINGVO_FAILED
  _print_line(reporting.report(compared))
  return 1 if compared.departing or compared.random else 0


def _run_lingvo(is_bridged: bool):
  """Returns Lingvo's results, in the process of Lingvo's side."""
  name = experiment_flags.name()
  experiment = _found(name)
  from adaptors.lingvo_parity import running

  return running.run_lingvo(experiment, name, _options(), is_bridged=is_bridged)


def _found(name: str):
  """Returns the experiment."""
  return experiment_overrides.changed(
    experiment_sources.find(name, experiment_flags.options()),
    skip_bad_records=experiment_flags.skip_bad_records(),
  )


def _options():
  """Returns the options of the comparison, from the flags."""
  from adaptors.lingvo_parity import running
  from adaptors.params import shrinking

  return running.Options(
    steps=_STEPS.value,
    tolerance=_TOLERANCE.value,
    sizes=shrinking.Sizes() if _SHRINK.value else None,
    is_synthetic=_SYNTHETIC.value,
    checkpoint=_CHECKPOINT.value,
  )


def _print_line(line: str):
  print(line, flush=True)


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
