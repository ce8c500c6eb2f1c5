"""The options of Lingvo experiments, each of which is a flag."""

import dataclasses

from pax_compat.experiments import options


@dataclasses.dataclass(frozen=True)
class LingvoOptions(options.Options):
  """How Lingvo experiments are found, translated, read and started."""

  KIND = 'Lingvo'

  lingvo_source: str | None = options.option(
    None,
    "A checkout of Lingvo's source, whose params packages are added to what is"
    ' installed.',
  )
  translation: str = options.option(
    'auto',
    'How a Lingvo model is run: translated to JAX (native), in TensorFlow under'
    ' JAX (bridge), or native where possible (auto).',
    choices=('auto', 'native', 'bridge'),
  )
  model_params_override: str = options.option(
    '',
    "Changes of a Lingvo model's Params: `path : value` pairs, separated by ;"
    ' or new lines.',
    instead='; expected --set',
  )
  lingvo_input_replay: bool = options.option(
    False,
    'Read the training data of a Lingvo experiment in an order that can be'
    ' repeated, so that a run goes on exactly where it stopped, also with'
    ' another number of processes: one reader thread, files in order, no'
    ' shuffling.',
    instead='; expected replay=True of its LingvoInputAdaptor',
  )
  lingvo_logdir: str | None = options.option(
    None,
    "Folder of a run of Lingvo's trainer to go on with: from its newest"
    ' checkpoint, and, without --exp, with the experiment that its Params say.'
    ' With --exp the prefix of a checkpoint too.',
  )
  allow_missing: tuple[str, ...] = options.option(
    (),
    'Regular expression of tensors that a Lingvo checkpoint may lack; what they'
    ' would have been starts anew.',
  )
  allow_unused: tuple[str, ...] = options.option(
    (),
    'Regular expression of tensors of a Lingvo checkpoint that may be left'
    ' over.',
  )
  load_everything: bool = options.option(
    False,
    'With --list: import what registers Lingvo experiments, instead of reading'
    ' its source text only.',
    flag='lingvo',
  )

  def experiment_name(self) -> str:
    """Returns the folder of a Lingvo run, which names what it trained."""
    return self.lingvo_logdir or ''
