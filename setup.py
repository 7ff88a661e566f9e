"""The one thing that pyproject.toml cannot say: packages found by rule, and `conf/` beside them as one more.

setuptools' `packages.find` knows nothing of `package-dir` (https://github.com/pypa/setuptools/issues/5145).
"""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["gates*", "canary_mlflow*", "training*"]), "canary_mlflow.conf"])
