"""Which room may import which: dependencies point one way, and the core needs torch and numpy alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cutlayer

ROOT = Path(cutlayer.__file__).parent

# A room imports rooms of the lines above its own; never its own line, never below.
LAYERS = [
    "core",
    "wire nets data rules metrics",
    "guards",
    "attacks detectors",
    "training",
    "engines",
    "audit",
    "bench",
    "cli",
]
NEVER = {("training", "attacks"), ("engines", "attacks")}
# Import their base and parts/, no sibling.
PLUG_INS = ("guards", "attacks", "detectors", "rules", "wire/codecs", "training/protocols")

FILES = sorted(ROOT.rglob("*.py"))
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms.split()}


def imported(file):
    """Modules of this package that a file imports, as parts of their path, wherever in it the import stands."""
    inside = file.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "cutlayer":
                    yield tuple(alias.name.split(".")[1:])
        elif isinstance(node, ast.ImportFrom):
            module = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = (*inside[: len(inside) - node.level], *module)
            elif module[:1] == ("cutlayer",):
                base = module[1:]
            else:
                continue
            # `from ..engines import halt` names a module, `from ..engines.halt import Halt` what is in one.
            yield from ((*base, alias.name) if _is_module((*base, alias.name)) else base for alias in node.names)


def _is_module(parts):
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def rooms_of(file):
    return {module[0] for module in imported(file) if module}


def test_the_rooms_are_all_there_is():
    assert {entry.name for entry in ROOT.iterdir()} - {"__pycache__"} == {
        *HEIGHT,
        "__init__.py",
        "__main__.py",
        "py.typed",
    }


@pytest.mark.parametrize("room", HEIGHT)
def test_a_room_imports_the_rooms_above_it(room):
    for file in (ROOT / room).rglob("*.py"):
        for other in rooms_of(file) - {room}:
            assert HEIGHT[other] < HEIGHT[room], f"{file.relative_to(ROOT)} imports {other}"
            assert (room, other) not in NEVER, f"{file.relative_to(ROOT)} imports {other}"


@pytest.mark.parametrize("folder", PLUG_INS)
def test_plug_ins_never_import_each_other(folder):
    home = tuple(folder.split("/"))
    for file in (ROOT / folder).rglob("*.py"):
        if file == ROOT / folder / "__init__.py":
            continue
        for module in imported(file):
            if module[: len(home)] == home:
                assert module[len(home) : len(home) + 1] in (("base",), ("parts",)), (
                    f"{file.relative_to(ROOT)} imports {'.'.join(module)}: what two plug-ins share belongs in parts/"
                )


@pytest.mark.parametrize("folder", PLUG_INS)
def test_parts_never_import_plug_ins_and_bases_no_parts_of_plug_ins(folder):
    """`parts/` stands below the plug-ins, so a part imports base and other parts alone."""
    for file in (ROOT / folder / "parts").rglob("*.py"):
        siblings = {f.stem for f in (ROOT / folder).glob("*.py")} - {"base", "__init__"}
        home = tuple(folder.split("/"))
        named = {
            module[len(home)] for module in imported(file) if module[: len(home)] == home and len(module) > len(home)
        }
        assert not named & siblings, f"{file.relative_to(ROOT)} imports {named & siblings}"


def test_every_folder_says_what_it_is():
    for folder in {file.parent for file in FILES}:
        assert (folder / "__init__.py").is_file(), f"{folder} is no package"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{folder} does not say what it is"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_help_loads_no_torch():
    done = run("import sys, cutlayer.cli.app; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_deployed_client_carries_no_attack():
    done = run(
        "import sys, cutlayer.engines.grpc.client, cutlayer.engines.grpc.deploy, cutlayer.engines.grpc.server\n"
        "print([name for name in sys.modules if name.startswith('cutlayer.attacks')])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_core_imports_with_torch_and_numpy_alone():
    done = run(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('typer rich PIL matplotlib safetensors mlxtend pandas sklearn '\n"
        "                'dp_accounting opacus scipy').split():\n"
        "            raise ImportError(name + ' is not installed')\n"
        "sys.meta_path.insert(0, Gone())\n"
        "import cutlayer.audit.matrix, cutlayer.audit.report.files, cutlayer.bench.run\n"
        "import cutlayer.engines.local.start, cutlayer.training.facts.privacy\n"
        "from cutlayer.core.spec import names, HOMES\n"
        "print(sum(len(names(kind)) for kind in HOMES) > 20)"
    )
    assert done.stdout.strip() == "True", done.stderr


def test_nothing_depends_on_torchvision():
    for file in FILES:
        assert "import torchvision" not in file.read_text()
