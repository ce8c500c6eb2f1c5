"""Builds and installs the distribution `pax-compat`."""

import setuptools

# The lower bounds are the versions that the tests run on, see constraints.txt.
# Nothing in this list installs TensorFlow.
CORE = [
  'absl-py>=2.1',
  'clu>=0.0.12',
  'etils[epath]>=1.9',
  'fiddle>=0.3.1,<0.4',
  'flax>=0.12.8,<0.13',
  'fsspec>=2025.3',
  'jax>=0.10,<0.12',
  'jaxlib>=0.10,<0.12',
  'numpy>=2.0',
  'optax>=0.2.8,<0.3',
  'orbax-checkpoint>=0.12.8,<0.13',
  'tensorboardX>=2.6.2,<3',
  'tensorstore>=0.1.86',
]

# SentencePiece 0.2.3 does not load beside the protobuf 6 that TensorFlow needs.
SENTENCEPIECE = 'sentencepiece>=0.2,<0.2.3'

LINGVO = [
  'lingvo>=0.14,<0.15',
  'protobuf>=6,<7',
  SENTENCEPIECE,
  # Lingvo and TensorFlow Hub import `pkg_resources`; setuptools 82 has none.
  'setuptools<81',
  'tensorflow>=2.21,<2.22',
  'tensorflow-text>=2.21,<2.22',
]

SEQIO = [
  # Apache Beam writes TFRecords with it, for `seqio_cache_tasks`.
  'google-crc32c>=1.7',
  # TensorFlow Datasets imports it where it prepares data, and does not name it.
  'importlib_resources>=6',
  'seqio>=0.0.20',
  SENTENCEPIECE,
  'tensorflow>=2.21,<2.22',
]

GRAIN = ['grain>=0.2.18,<0.3']

# Runs in folders of Google Cloud Storage, gs://bucket/folder.
GCS = ['gcsfs>=2025.3']

# Runs on accelerators. With TPU, any machine compiles for TPUs, too.
TPU = ['jax[tpu]>=0.10,<0.12']

CUDA = ['jax[cuda12]>=0.10,<0.12']

# A formatter's minor versions differ in what they call formatted.
TEST = [
  *GCS,
  'hypothesis>=6.100',
  'pytest>=9',
  'pytest-xdist>=3.6',
  'pyyaml>=6',
  'ruff~=0.17.5',
  'scipy>=1.13',
]

setuptools.setup(
  name='pax-compat',
  version='0.1.0',
  description='Runs Lingvo experiments on JAX, at their own numbers.',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=setuptools.find_packages(
    include=['pax_compat*', 'adaptors*', 'lm_tasks*']
  ),
  install_requires=CORE,
  extras_require={
    'lingvo': LINGVO,
    'seqio': SEQIO,
    'gcs': GCS,
    'grain': GRAIN,
    'tpu': TPU,
    'cuda': CUDA,
    'all': sorted({*LINGVO, *SEQIO, *GRAIN}),
    'test': TEST,
  },
  entry_points={
    'console_scripts': ['pax-compat = pax_compat.main:run'],
    # The numbers in front give the order in which the sources are asked.
    'pax_compat.experiment_sources': [
      '10_native = pax_compat.experiment_registry',
      '20_lingvo = adaptors.experiments.lingvo_source',
    ],
    'pax_compat.lingvo_params': ['lm = lm_tasks.lingvo_params'],
    'pax_compat.native_params': ['tasks.lm.params = lm_tasks.params'],
  },
)
