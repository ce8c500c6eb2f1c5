"""Builds and installs the distribution `pax-compat`."""

import ast
import pathlib

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent


def version() -> str:
  """Returns `pax_compat.__version__`, without importing the package."""
  for line in (ROOT / 'pax_compat' / '__init__.py').read_text().splitlines():
    if line.startswith('__version__ = '):
      return ast.literal_eval(line.partition(' = ')[2])
  raise ValueError('pax_compat/__init__.py has no __version__')


PACKAGES = ['pax_compat', 'adaptors', 'lm_tasks']

# The lower bounds are the versions that the tests run on, see constraints.txt.
# Nothing in this list installs TensorFlow.
CORE = [
  'absl-py>=2.1',
  'clu>=0.0.12',
  'etils[epath]>=1.9',
  'fiddle>=0.3.1,<0.4',
  'flax>=0.12.8,<0.13',
  'fsspec>=2025.3',
  'google-crc32c>=1.7',
  'jax>=0.10,<0.12',
  'jaxlib>=0.10,<0.12',
  'numpy>=2.0',
  'optax>=0.2.8,<0.3',
  'orbax-checkpoint>=0.12.8,<0.13',
  'protobuf>=6',
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
  # TensorFlow Datasets imports it where it prepares data, and does not name it.
  'importlib_resources>=6',
  'seqio>=0.0.20',
  SENTENCEPIECE,
  'tensorflow>=2.21,<2.22',
]

GRAIN = ['grain>=0.2.18,<0.3']

# Runs in folders of Google Cloud Storage, gs://bucket/folder.
GCS = ['gcsfs>=2025.3']

# HTML pages of `pax_compat.tools.report`.
REPORT = ['plotly>=6']

# Studies: Bayesian search, and search spaces as class attributes.
TUNE = ['optuna>=5,<6', 'pyglove>=0.4.5']

# Runs on accelerators. With TPU, any machine compiles for TPUs, too.
TPU = ['jax[tpu]>=0.10,<0.12']

CUDA = ['jax[cuda12]>=0.10,<0.12']

# The documents as a site.
DOCS = ['mkdocs>=1.6,<2', 'mkdocs-material>=9.7', 'mkdocstrings[python]>=1']

# A formatter's minor versions differ in what they call formatted.
TEST = [
  *GCS,
  *REPORT,
  *TUNE,
  'hypothesis>=6.100',
  # They run the notebooks.
  'ipykernel>=6',
  'nbclient>=0.10',
  'nbformat>=5',
  'pytest>=9',
  'pytest-timeout>=2.4',
  'pytest-xdist>=3.8',
  'pyyaml>=6',
  'ruff~=0.17.5',
  'scipy>=1.13',
]

setuptools.setup(
  name='pax-compat',
  version=version(),
  description='Runs Lingvo experiments on JAX, at their own numbers.',
  long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  author='The pax-compat authors',
  license='Apache-2.0',
  license_files=['LICENSE'],
  keywords=[
    *('jax', 'flax', 'lingvo', 'pax', 'paxml', 'praxis', 'tpu', 'gpu'),
    *('language models', 'machine learning', 'migration', 'tensorflow'),
  ],
  classifiers=[
    'Development Status :: 4 - Beta',
    'Environment :: Console',
    'Environment :: GPU :: NVIDIA CUDA',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3 :: Only',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Typing :: Typed',
  ],
  python_requires='>=3.11',
  packages=setuptools.find_packages(include=[f'{p}*' for p in PACKAGES]),
  package_data={
    **{package: ['py.typed'] for package in PACKAGES},
    'adaptors.lingvo_registry': ['stock_classes.json'],
  },
  install_requires=CORE,
  extras_require={
    'lingvo': LINGVO,
    'seqio': SEQIO,
    'gcs': GCS,
    'grain': GRAIN,
    'report': REPORT,
    'tune': TUNE,
    'tpu': TPU,
    'cuda': CUDA,
    'all': sorted({*LINGVO, *SEQIO, *GRAIN}),
    'test': TEST,
    'docs': DOCS,
  },
  entry_points={
    'console_scripts': ['pax-compat = pax_compat.main:run'],
    # The numbers in front give the order in which the sources are asked.
    'pax_compat.experiment_sources': [
      '05_pax = adaptors.pax_names.experiments',
      '10_native = pax_compat.experiment_registry',
      '20_lingvo = adaptors.experiments.lingvo_source',
    ],
    'pax_compat.lingvo_params': ['lm = lm_tasks.lingvo_params'],
    'pax_compat.native_params': [
      'tasks.lm.params = lm_tasks.params',
      'tasks.vision.params = lm_tasks.vision.params',
    ],
    'pax_compat.pax_names': [
      'paxml.tasks.lm.input_generator = lm_tasks.synthetic_lm',
      'paxml.tasks.lm.model_params = lm_tasks.model_params',
    ],
  },
)
