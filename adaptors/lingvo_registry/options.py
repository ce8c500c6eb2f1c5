"""The options of Lingvo experiments, each of which is a flag."""

import dataclasses

from pax_compat.experiments import options


@dataclasses.dataclass(frozen=True)
class LingvoOptions(options.Options):
  """How Lingvo experiments are found, translated, read and started."""

  KIND = 'Lingvo'

  lingvo_source: str | None = options.option(
    None,
    "A checkout of Lingvo's source. Its params packages are added to those that"
    ' are installed.',
  )
  translation: str = options.option(
    'auto',
    'How to run a Lingvo model: translated to JAX (native), in TensorFlow under'
    ' JAX (bridge), or native if possible (auto).',
    choices=('auto', 'native', 'bridge'),
  )
  model_params_override: str = options.option(
    '',
    "Overrides of a Lingvo model's Params: `path : value` pairs, separated by ;"
    ' or new lines.',
    instead='; expected --set',
  )
  lingvo_input_replay: bool = options.option(
    False,
    'Read the training data of a Lingvo experiment in a deterministic order, so'
    ' that a run resumes exactly where it stopped, even with another number of'
    ' processes: one reader thread, files in order, no shuffling.',
    instead='; expected replay=True of its LingvoInputAdaptor',
  )
  lingvo_logdir: str | None = options.option(
    None,
    "Folder of a run of Lingvo's trainer to continue from its newest"
    ' checkpoint. Without --exp, its Params are the experiment. With --exp, it'
    ' may also be the prefix of a checkpoint.',
  )
  allow_missing: tuple[str, ...] = options.option(
    (),
    'Regular expression of tensors that a Lingvo checkpoint may lack. They keep'
    ' their initial values.',
  )
  allow_unused: tuple[str, ...] = options.option(
    (),
    'Regular expression of tensors of a Lingvo checkpoint that may be unused.',
  )
  load_everything: bool = options.option(
    False,
    'With --list: import the modules that register Lingvo experiments, instead'
    ' of parsing their source.',
    flag='lingvo',
  )

  def experiment_name(self) -> str:
    """Returns the folder of a Lingvo run, a name of its experiment."""
    return self.lingvo_logdir or ''
