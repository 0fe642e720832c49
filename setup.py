"""Recipes go into the wheel: they lie beside the package in the repository, and as data inside it where installed."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithRecipes(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "cutlayer", "recipes")
            shutil.copytree("recipes", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": WithRecipes})
