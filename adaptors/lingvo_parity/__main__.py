"""Holds a Lingvo experiment against its translation, and says what departs.

    python -m adaptors.lingvo_parity --exp=lm.python_docs.TransformerLmTiny

Lingvo and the translation run side by side in this process, from the same
weights, on the same first batches of the experiment's training input. Compared
are what each layer gives out, the loss, the metrics at evaluation, the gradient
of each weight, and then the losses of training, optimizer and schedule
included. What is random (dropout, sampled classes) is off or equal in both.

Ends with status 0 if all agrees; with 1 if something departs, and names the
first layer that does; with 2 after a mistake in what was asked for.

Stock experiments are large, and their files are elsewhere: --shrink --synthetic
tries them on any machine.
"""

from absl import flags

from pax_compat import experiment_sources
from pax_compat.cli import command_line, experiment_flags
from pax_compat.experiments import experiment_overrides

flags.adopt_module_key_flags(experiment_flags)

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'A checkpoint of TensorFlow that Lingvo wrote, or the folder of a run: its'
  ' weights are those to start with. By default they are new.',
)
_STEPS = flags.DEFINE_integer(
  'steps', 20, 'Steps of training; 0 for none.', lower_bound=0
)
_SHRINK = flags.DEFINE_bool(
  'shrink',
  False,
  'Reduce the model to a size that runs anywhere: its dimensions, layers and'
  ' vocabulary, but not its structure. Batches are cut to fit.',
)
_SYNTHETIC = flags.DEFINE_bool(
  'synthetic',
  False,
  "Take batches of made-up ids, and not the experiment's own input.",
)
_TOLERANCE = flags.DEFINE_float(
  'tolerance',
  1e-5,
  'Largest relative difference of outputs, losses and metrics. Gradients, and'
  ' losses after the first step, may differ by ten times as much.',
  lower_bound=0,
)


def main(argv: list[str]) -> int:
  """Does what the flags say; returns the exit status."""
  experiment_flags.no_arguments(argv)
  name = experiment_flags.name()
  experiment = experiment_overrides.changed(
    experiment_sources.find(name, experiment_flags.options()),
    skip_bad_records=experiment_flags.skip_bad_records(),
  )
  # JAX and flax take seconds to import, which a mistake in a name should not
  # cost.
  from adaptors.lingvo_parity import reporting, running
  from adaptors.params import shrinking

  options = running.Options(
    steps=_STEPS.value,
    tolerance=_TOLERANCE.value,
    sizes=shrinking.Sizes() if _SHRINK.value else None,
    is_synthetic=_SYNTHETIC.value,
    checkpoint=_CHECKPOINT.value,
  )
  compared = running.run(experiment, name, options, say=_say)
  _say(reporting.report(compared))
  return 1 if compared.departing else 0


def _say(line: str):
  print(line, flush=True)


if __name__ == '__main__':
  command_line.run(main, experiment_flags.define_of_sources)
