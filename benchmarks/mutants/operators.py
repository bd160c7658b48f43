"""The mutations of a module: replacements of source text, found by its syntax tree."""

from __future__ import annotations

import ast
import copy
import difflib
import re
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_REVERSED = _COMPARISONS | {ast.Lt: ast.Gt, ast.LtE: ast.Gt, ast.Gt: ast.Lt, ast.GtE: ast.Lt}
_CLOCK = re.compile(r"\b(monotonic|time|now)\(\)|\bnow [<>]")
"""No test meets the very nanosecond of a limit: such a comparison is turned round instead."""
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LIMIT = re.compile(r"(_s|_ms|limit|timeout|deadline|within|retries|attempts|tries)$", re.I)
_CLEANUP = re.compile(
    r"(close|kill|terminate|end|stop|remove|unlink|rmtree|rmdir|cancel|delete|free|release|clear"
    r"|wait|join|reap|umount|unmount|shutdown|forget|discard|pop)(_|$)"
)
_WORDS = {"print", "warn", "debug", "info", "log", "addoption", "addini", "add_argument", "cast"}
"""Calls of these are about words, or for the type checker alone."""
_UNTESTED = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A replacement in the source of a module. start, end: offsets in its UTF-8 bytes."""

    path: str
    operator: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> str:
        """The changed lines, with one line around them."""
        old, new = source.splitlines(), self.apply(source).splitlines()
        return "\n".join(list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:])

    def changed(self, source: str) -> str:
        """The changed lines alone, which stay the same when others are added to the module."""
        lines = self.diff(source).splitlines()
        return "\n".join(f"{x[0]}{x[1:].strip()}" for x in lines if x[0] in "+-")


def mutations(path: str, source: str) -> list[Mutation]:
    """All mutations of a module, in order of its text."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda m: (m.start, m.operator, m.text))


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutation] = []
        self._path = path
        self._lines = [0]
        for line in source.encode().split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def _offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def _put(self, operator: str, old: ast.expr | ast.stmt, new: ast.AST | str) -> None:
        assert old.end_lineno is not None
        assert old.end_col_offset is not None
        text = new if isinstance(new, str) else ast.unparse(new)
        if isinstance(old, ast.expr) and not isinstance(new, str | ast.Name | ast.Constant):
            text = f"({text})"
        start = self._offset(old.lineno, old.col_offset)
        end = self._offset(old.end_lineno, old.end_col_offset)
        self.found.append(Mutation(self._path, operator, old.lineno, start, end, text))

    def _limits(self, name: str, value: ast.expr | None) -> None:
        is_limit = value is not None and _LIMIT.search(name) and _is_number(value)
        if value is not None and is_limit and ast.literal_eval(value) != 0:
            self._put("limit", value, f"({ast.unparse(value)} * 1000)")

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.UnaryOp | ast.Compare | ast.BoolOp):
            self._put("condition", test, f"(not {ast.unparse(test)})")

    # What is not mutated: words, annotations, decorators, invariants.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text; and before Python 3.12 its parts have no positions."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """The condition around it is mutated, its message not."""
        self._put("statement", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """An invariant."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any("Protocol" in ast.unparse(base) for base in node.bases):
            for statement in node.body:
                self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) or "__name__" in ast.unparse(node.test):
            return
        self._condition(node.test)
        self.generic_visit(node)

    # Statements.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _UNTESTED or "overload" in map(ast.unparse, node.decorator_list):
            return
        defaults = list(zip(reversed(node.args.args), reversed(node.args.defaults), strict=False))
        for arg, default in (*defaults, *zip(node.args.kwonlyargs, node.args.kw_defaults)):  # noqa: B905  as many
            self._limits(arg.arg, default)
            if isinstance(default, ast.Constant) and isinstance(default.value, bool):
                self._put("default", default, str(not default.value))
            elif default is not None and _is_number(default) and arg.arg != "seed":
                self._put("default", default, f"({ast.unparse(default)} + 1)")
        returns_none = node.returns is not None and ast.unparse(node.returns) == "None"
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if len(body) > 1 and returns_none:
            self._put("early return", body[0], "return")
        for statement in body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        [first, *_] = node.targets
        if isinstance(first, ast.Name):
            self._limits(first.id, node.value)
        if isinstance(first, ast.Subscript):
            owner, key = ast.unparse(first.value), ast.unparse(first.slice)
            if ":" not in key:
                wins = f"{owner}[{key}] = {owner}.get({key}) or {ast.unparse(node.value)}"
                self._put("first wins", node, wins)
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if isinstance(node.target, ast.Name):
                self._limits(node.target.id, node.value)
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target, value = ast.unparse(node.target), ast.unparse(node.value)
        self._put("added", node, f"{target} = {value}")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and _name(call) not in _WORDS:
            cleans = _CLEANUP.search(_name(call))
            self._put("clean-up" if cleans else "statement", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
                self._put("return", node, f"return {not node.value.value}")
            elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._put("return", node, "return None")
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._put("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._put("loop", node, "break")

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            if not any(isinstance(s, ast.Raise) for s in handler.body):
                self._put("handler", handler.body[0], "raise")
            if isinstance(handler.type, ast.Tuple):
                self._put("handler", handler.type, handler.type.elts[0])
        self.generic_visit(node)

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        new = copy.deepcopy(node)
        of_time = _CLOCK.search(ast.unparse(node)) is not None
        new.ops[0] = (_REVERSED if of_time else _COMPARISONS)[type(node.ops[0])]()
        self._put("comparison", node, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = copy.deepcopy(node)
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._put("and, or", node, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._put("not", node, node.operand)
        self.visit(node.operand)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        swapped = ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
        self._put("condition", node, swapped)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        words = any(isinstance(n, ast.JoinedStr) or _is_text(n) for n in (node.left, node.right))
        if type(node.op) in _ARITHMETIC and not words:
            new = copy.deepcopy(node)
            new.op = _ARITHMETIC[type(node.op)]()
            self._put("arithmetic", node, new)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.slice) in ("0", "-1"):
            end = "-1" if ast.unparse(node.slice) == "0" else "0"
            self._put("first, last", node.slice, end)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if name in _WORDS:
            return
        if isinstance(node.func, ast.Name) and name in _TWINS:
            self._put("min, max" if name in ("min", "max") else "any, all", node.func, _TWINS[name])
        if name == "setdefault" and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
            owner, [key, value] = ast.unparse(node.func.value), map(ast.unparse, node.args)
            self._put("last wins", node, f"{owner}.update({{{key}: {value}}}) or {owner}[{key}]")
        for keyword in node.keywords:
            self._limits(keyword.arg or "", keyword.value)
        self.generic_visit(node)


def _is_number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _name(call: ast.Call) -> str:
    """The last word of what is called."""
    return ast.unparse(call.func).rpartition(".")[2]
