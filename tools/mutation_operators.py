"""Small bugs, as edits of the exact place in a file: everything else, comments too, stays as it was.

`places(path)` yields every one that a file offers. Left alone is what speaks to people (messages, logs, __repr__),
what is declared (annotations, decorators), and what checks the programmer (assert, zip's strict).
"""

import ast
import bisect
import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    operator: str
    before: str  # the lines that change, on one
    after: str
    edit: tuple[int, int, bytes]  # of the file: from, to, what stands there instead

    @property
    def room(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> tuple[str, str, str, str]:
        """Without the line: it stays the same bug when lines are added above."""
        return self.path, self.operator, self.before, self.after

    def source(self) -> bytes:
        """The whole file with the bug in it."""
        begin, end, text = self.edit
        return (was := (ROOT / self.path).read_bytes())[:begin] + text + was[end:]

    def changes_the_program(self) -> bool:
        with contextlib.suppress(SyntaxError):
            return ast.dump(ast.parse(self.source())) != ast.dump(ast.parse((ROOT / self.path).read_bytes()))
        return False

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "edit"}

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.operator}  {short(self.before)}  ->  {short(self.after)}"


Edit = tuple[str, int, int, bytes]  # operator, span in the file's bytes, what stands there instead

COMPARE = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
EXTREMES = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum"}
EXTREMES |= {high: low for low, high in EXTREMES.items()}
# Two arguments in the wrong order end at once in a TypeError, or (extremes) mean the same: neither tells anything.
NEVER_SWAPPED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", *EXTREMES}
LISTS = (ast.List, ast.ListComp, ast.Tuple)  # nothing but + is defined for them
DECLARED = {"annotation", "returns", "decorator_list"}  # fields of nodes that nothing is changed in


def is_text(node: ast.AST) -> bool:
    """What speaks to people or checks the programmer, and not what the program does."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.keyword(arg="strict"):  # of zip: an assert in other words
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Compare(left=ast.Name("__name__"))):
            return True
        case ast.Expr(value=ast.Call(func=func) as call):
            return is_text(call) or (isinstance(func, ast.Name) and func.id == "log")  # elsewhere it is the logarithm
        case ast.Call(func=func):
            return bool(re.fullmatch(r"print|(\w+\.)*(log|logger|logging|console|warnings)\.\w+", ast.unparse(func)))
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def reachable(node: ast.AST) -> Iterator[ast.AST]:
    if is_text(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in DECLARED and isinstance(child, ast.AST):
                yield from reachable(child)


class Source:
    """A file's bytes by the places of its nodes: columns of `ast` count bytes of UTF-8."""

    def __init__(self, path: Path) -> None:
        self.bytes = path.read_bytes()
        self.tree = ast.parse(self.bytes)
        self._lines = [0, *itertools.accumulate(len(line) for line in self.bytes.splitlines(keepends=True))]
        self._defaults = {id(part) for value in self._default_values() for part in ast.walk(value)}

    def _default_values(self) -> Iterator[ast.AST]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arguments):
                yield from filter(None, [*node.defaults, *node.kw_defaults])
            elif isinstance(node, ast.ClassDef):  # fields of dataclasses
                yield from (one.value for one in node.body if isinstance(one, ast.AnnAssign) and one.value)

    def span(self, first: Any, last: Any = None) -> tuple[int, int]:
        last = last or first
        begin = self._lines[first.lineno - 1] + first.col_offset
        return begin, self._lines[last.end_lineno - 1] + last.end_col_offset

    def text(self, node: Any) -> bytes:
        return self.bytes[slice(*self.span(node))]

    def between(self, operator: str, left: Any, right: Any, change: tuple[str, str]) -> Iterator[Edit]:
        """The sign between two operands; there may be brackets and new lines around it."""
        begin, end = self.span(left)[1], self.span(right)[0]
        if found := re.search(re.escape(change[0]).replace(r"\ ", r"\s+").encode(), self.bytes[begin:end]):
            yield operator, begin + found.start(), begin + found.end(), change[1].encode()

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for one, op, other in zip([left, *others], ops, others, strict=False):
                    yield from self.between("compare", one, other, COMPARE[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                if not any(is_text(side) or isinstance(side, LISTS) for side in (left, right)):
                    yield from self.between("arithmetic", left, right, ARITHMETIC[type(op)])
            case ast.BoolOp(op=op, values=values):
                for one, other in itertools.pairwise(values):
                    yield from self.between("and/or", one, other, LOGIC[type(op)])
            case ast.UnaryOp(op=ast.Not()):
                begin = self.span(node)[0]
                yield "not removed", begin, begin + len(re.match(rb"not\s*", self.bytes[begin:])[0]), b""
            case ast.Constant(value=bool() | int() | float() as value):
                other = not value if isinstance(value, bool) else value + 1
                operator = "default" if id(node) in self._defaults else "constant"
                yield operator, *self.span(node), repr(other).encode()
            case ast.If(test=test) | ast.IfExp(test=test):
                yield from self.negated(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self.negated(test)
            case ast.Expr(value=ast.Call()):
                yield "statement dropped", *self.span(node), b"pass"
            case ast.AugAssign(target=target, op=op, value=value):
                yield "statement dropped", *self.span(node), b"pass"
                if type(op) in ARITHMETIC and not isinstance(value, LISTS):
                    yield from self.between("arithmetic", target, value, ARITHMETIC[type(op)])
            case ast.Return(value=value) if value and not (isinstance(value, ast.Constant) and value.value is None):
                yield "return None", *self.span(value), b"None"
            case ast.Call(func=func, args=args):
                yield from self.called(func, args)

    def negated(self, test: ast.expr) -> Iterator[Edit]:
        if not isinstance(test, ast.UnaryOp):  # a second `not` is the first one removed
            yield "if negated", *self.span(test), b"not (" + self.text(test) + b")"

    def called(self, func: ast.expr, args: list[ast.expr]) -> Iterator[Edit]:
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name in EXTREMES:
            end = self.span(func)[1]
            yield "min/max", end - len(name), end, EXTREMES[name].encode()
        for one, other in itertools.pairwise(args):
            between = self.bytes[self.span(one)[1] : self.span(other)[0]]
            swapped = self.text(other) + between + self.text(one)
            if name not in NEVER_SWAPPED and not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                yield "arguments swapped", *self.span(one, other), swapped

    def mutants(self, path: str) -> Iterator[Mutant]:
        for node in reachable(self.tree):
            for operator, begin, end, text in self.edits(node):
                first, last = self.bytes.rfind(b"\n", 0, begin) + 1, self.bytes.find(b"\n", end)
                before = on_one_line(self.bytes[first:last])
                after = on_one_line(self.bytes[first:begin] + text + self.bytes[end:last])
                line = bisect.bisect_right(self._lines, begin)
                yield Mutant(path, line, operator, before, after, (begin, end, text))


def on_one_line(lines: bytes) -> str:
    return " ".join(lines.decode().split())


def short(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def places(path: Path) -> Iterator[Mutant]:
    yield from Source(path).mutants(str(path.relative_to(ROOT)))
