"""What a mutation changes: one operator, number, condition or call of a module at a time."""

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

_SWAPS = """
Lt LtE, LtE Lt, Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, Is IsNot, IsNot Is,
Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod Mult, Pow Mult, LShift RShift,
RShift LShift, BitAnd BitOr, BitOr BitAnd, BitXor BitAnd, And Or, Or And, Continue Break
"""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    getattr(ast, before): getattr(ast, after)
    for before, after in (pair.split() for pair in _SWAPS.split(","))
}
_PAIRS = (("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"))
CALLS = dict(_PAIRS) | {b: a for a, b in _PAIRS} | {"logaddexp": "subtract"}
BINDING = {"encode_context", "digest_of", "derive", "_salted"}
"""Calls whose arguments a digest or a key is bound to: each is left out once."""
Apply = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Mutation:
    key: str  # Names it, also where lines have moved since
    module: str  # Path in the repository
    line: int  # Of the change, now
    what: str  # The expression before and after it
    run: range  # Lines of its statement; none where that is done once, at import


def mutations(module: str, source: str) -> list[Mutation]:
    found: list[Mutation] = []
    times: dict[str, int] = {}
    for (scope, run), node, apply in _places(ast.parse(source)):
        before = ast.unparse(node)
        apply()
        after = ast.unparse(node)
        apply()
        text = f"{scope}: {before} -> {after}"
        times[text] = times.get(text, -1) + 1
        key = hashlib.sha256(f"{module} {text} {times[text]}".encode()).hexdigest()[:12]
        short = " → ".join(" ".join(each.split())[:100] for each in (before, after))
        line = getattr(node, "lineno", run.start)
        found.append(Mutation(key, module, line, f"{scope}: {short}", run))
    return found


def mutated(mutation: Mutation, source: str) -> ast.Module:
    number = [each.key for each in mutations(mutation.module, source)].index(
        mutation.key
    )
    tree = ast.parse(source)
    _, _, apply = next(islice(_places(tree), number, None))
    apply()
    return ast.fix_missing_locations(tree)


Where = tuple[str, range]


def _places(tree: ast.Module) -> Iterator[tuple[Where, ast.AST, Apply]]:
    """(where, what stands there, a switch that changes it, and back when called again)."""
    for top in tree.body:
        for parent, where in _statements(top, ("", range(0))):
            for node in ast.walk(parent) if isinstance(parent, ast.expr) else (parent,):
                for apply in _changes(node):
                    yield where, node, apply


def _statements(node: ast.AST, where: Where) -> Iterator[tuple[ast.AST, Where]]:
    """Statements and the expressions in them; without annotations, texts of errors, asserts."""
    scope, run = where
    inside = bool(run)
    match node:
        case (
            (
                ast.Raise()
                | ast.Assert()
                | ast.Import()
                | ast.ImportFrom()
                | ast.Global()
            )
            | (
                ast.FunctionDef(name="__repr__" | "__str__")
                | ast.Expr(value=ast.Constant())
            )
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.Assign(targets=[ast.Name(id="__all__")])
        ):
            return
        case ast.FunctionDef() | ast.ClassDef():
            scope = f"{scope}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef):
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    if default is not None:
                        yield from _statements(default, (scope, run))
                run = range(node.lineno, node.lineno + 1)
            for each in node.body:
                yield from _statements(each, (scope, run))
            return
        case ast.expr():
            yield node, where
            return
    if isinstance(node, ast.stmt):
        if inside:
            body = getattr(node, "body", [])
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            where = scope, range(node.lineno, max(last, node.lineno) + 1)
        yield node, where
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _statements(each, where)


def _changes(node: ast.AST) -> Iterator[Apply]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield _switch(node.ops, 0, SWAPS[type(op)]())
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if (
            type(op) in SWAPS
        ):
            yield _switch(node, "op", SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield _switch(node, "op", ast.UAdd())
        case ast.Constant(value=bool(value)):
            yield _switch(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield _switch(node, "value", value + 1)
        case ast.Constant(value=float(value)):
            yield _switch(node, "value", 2 * value or 1.0)
        case ast.If(body=[ast.Raise() | ast.Return(), *_]):
            yield _switch(node, "test", ast.Constant(value=False))
        case ast.Expr(value=ast.Call()):
            yield _switch(node, "value", ast.Constant(value=None))
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _switch(node, "func", ast.Name(id=CALLS[name], ctx=ast.Load()))
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
            yield _switch(node.func, "attr", CALLS[name])
        case ast.Call(func=ast.Name(id=name)) if name in BINDING:
            for place in range(1, len(node.args)):
                yield _switch(node, "args", node.args[:place] + node.args[place + 1 :])


def _switch(owner: object, place: str | int, other: object) -> Apply:
    """Exchanges what stands at a place with ``other``, each time that it is called."""
    held = [other]

    def switch() -> None:
        if isinstance(place, int):
            assert isinstance(owner, list)
            owner[place], held[0] = held[0], owner[place]
        else:
            now = getattr(owner, place)
            setattr(owner, place, held[0])
            held[0] = now

    return switch
