"""Measures how many small defects the fast tests notice: `python scripts/mutation_score.py`.

A mutant is one module with one change in its syntax tree: a comparison or an operator replaced, a condition negated, a
number increased by one, a statement or a return value left out. The sample is the same on each run, and stays the same
for functions that don't change: the sites whose digests are the smallest. A mutant is run against the fast tests that
mirror its module or name it, in a process forked from one that has imported pytest and the libraries.

The score says how much of a module its own tests notice, not how much the whole suite would: a mutant that only a test
of another folder catches has survived. Each test file is run once without a change: one that fails then, or takes more
than `SLOW_FILE_S` of a processor, is left out and named. One failing example of Hypothesis's is enough: none is shrunk.
Mutants are run in the order of their digests, so that what Ctrl-C leaves is a sample, too.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib.abc
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "pairbus"
#: What is mutated: decisions, which are pure, and the journal; and where the tests of each are.
FOLDERS = {
    "amqp": "amqp",
    "broker/format": "broker",
    "broker/model": "broker",
    "broker/sql": "broker",
    "cost": "cost",
    "journal": "journal",
    "pairing/backlog": "pairing",
    "pairing/routing": "pairing",
    "syphon/core": "syphon",
}
#: What a test file may use of a processor, without a change, to be run for each mutant.
SLOW_FILE_S = 20.0
#: A mutant is caught, too, if its tests use more of a processor than three times what they use without a change, and
#: this; or if they take ten times as long, and this.
SPARE_CPU_S = 10.0
SPARE_WAIT_S = 60.0
#: The exit code of a process in which the tests did not even begin.
BROKEN = 99

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
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Site:
    module: str
    function: str
    kind: str
    #: Which of the function's sites of this kind it is, from 0.
    ordinal: int
    line: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.module} {self.function} {self.kind} {self.ordinal}".encode()).hexdigest()


class Mutation(ast.NodeTransformer):
    """Visits all sites of a module in order, and changes the one that is given."""

    def __init__(self, module: str, target: Site | None = None) -> None:
        self.module = module
        self.target = target
        self.sites: list[Site] = []
        self._function: list[str] = []
        self._counts: dict[tuple[str, str], int] = {}

    def _is_target(self, kind: str, node: ast.AST) -> bool:
        if not self._function:
            return False
        function = ".".join(self._function)
        ordinal = self._counts.get((function, kind), 0)
        self._counts[function, kind] = ordinal + 1
        site = Site(self.module, function, kind, ordinal, getattr(node, "lineno", 0))
        self.sites.append(site)
        return self.target is not None and site.digest == self.target.digest

    def _visit_named(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        is_function = isinstance(node, _FUNCTIONS)
        if is_function and node.name in ("__repr__", "__str__"):
            return node
        if is_function or self._function:
            self._function.append(node.name)
            node.body = [self.visit(each) for each in node.body]
            self._function.pop()
        else:
            outer = self._function
            for each in node.body:
                self._function = [node.name] if isinstance(each, _FUNCTIONS) else []
                self.visit(each)
            self._function = outer
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_named

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._is_target("comparison", node):
            node.ops = [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = _OPERATORS.get(type(node.op))
        if other is not None and self._is_target("operator", node):
            node.op = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_target("and-or", node):
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self._is_target("not", node) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.copy_location(ast.Constant(not node.value), node) if self._is_target("bool", node) else node
        if isinstance(node.value, int | float) and self._is_target("number", node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # what a message says is no decision

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._is_target("if", node):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self._is_target("statement", node):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Pass(), node) if self._is_target("statement", node) else node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not isinstance(node.value, ast.Constant) and self._is_target("return", node):
            node.value = ast.copy_location(ast.Constant(None), node.value)
        return node


def source_of(module: str) -> Path:
    return ROOT / "src" / f"{module.replace('.', '/')}.py"


def all_sites() -> Iterator[Site]:
    for folder in FOLDERS:
        for path in sorted((SRC / folder).rglob("*.py")):
            if path.name != "__init__.py":
                mutation = Mutation(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
                mutation.visit(ast.parse(path.read_text()))
                yield from mutation.sites


def tests_of(module: str) -> tuple[list[str], list[str]]:
    """Return the test files that mirror the module, and those that name it; if there are none, those beside them."""
    inside = module.removeprefix("pairbus.").replace(".", "/")
    folder = next(tests for source, tests in FOLDERS.items() if inside.startswith(f"{source}/"))
    name = inside.rpartition("/")[2]
    package = module.rpartition(".")[0]
    mirrors, others = [], []
    for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
        if path.stem.startswith(f"test_{name}"):
            mirrors.append(str(path))
        else:
            text = path.read_text()
            if module in text or (f"from {package} import" in text and name in text):
                others.append(str(path))
    if not mirrors and not others:
        others = [str(path) for path in sorted((ROOT / "tests" / inside).parent.glob("test_*.py"))]
    return mirrors, others


@dataclass(frozen=True)
class Cost:
    """What a test file takes without a change."""

    passes: bool
    cpu_s: float
    wait_s: float

    @property
    def is_run(self) -> bool:
        return self.passes and self.cpu_s <= SLOW_FILE_S


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with its change."""

    def __init__(self, module: str, code: CodeType) -> None:
        self.module = module
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, source_of(fullname), loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)  # noqa: S102 - to run a changed module is what this is for


class WithoutShrinking:
    """A plugin of pytest's, for which one failing example of Hypothesis's is enough."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile(settings.get_current_profile_name()), phases=phases)
        settings.load_profile("mutants")


def run_in_child(site: Site | None, tests: list[str], cpu_s: float) -> int:
    """Return pytest's exit code for the mutant, or for the code as it is. Runs in a forked process."""
    if site is not None:
        mutation = Mutation(site.module, site)
        tree = ast.fix_missing_locations(mutation.visit(ast.parse(source_of(site.module).read_text())))
        sys.meta_path.insert(0, Mutated(site.module, compile(tree, str(source_of(site.module)), "exec")))
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s)))
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    options = ["-x", "-q", "--assert=plain", "-p", "no:xdist", "-m", "not slow and not soak", "--timeout", "0"]
    # The libraries are imported already, which pytest warns of, and warnings are errors.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *tests], plugins=[WithoutShrinking()]))


def start(site: Site | None, tests: list[str], cpu_s: float) -> int:
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os._exit(run_in_child(site, tests, cpu_s))
        except BaseException:  # what fails before the tests begin says nothing of them
            traceback.print_exc()
            os._exit(BROKEN)
    return child


def end(child: int) -> None:
    """End what the tests of a mutant have left behind, and the tests themselves if they still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


@functools.cache
def cost_of(test: str) -> Cost:
    began = time.monotonic()
    child = start(None, [test], 10 * SLOW_FILE_S)
    _, status, used = os.wait4(child, 0)
    end(child)
    # 5: all of its tests are slow ones.
    passes = os.waitstatus_to_exitcode(status) in (0, 5)
    cost = Cost(passes, used.ru_utime + used.ru_stime, time.monotonic() - began)
    if not cost.is_run:
        print(f"left out: {test}: {cost}", file=sys.stderr, flush=True)
    return cost


def tests_to_run(module: str) -> list[str]:
    """Return the test files for a module: those that mirror it first, and of these the fastest."""
    by_kind = [sorted(tests, key=lambda test: cost_of(test).cpu_s) for tests in tests_of(module)]
    return [test for tests in by_kind for test in tests if cost_of(test).is_run]


def run(sample: Sequence[Site], jobs: int, fates: dict[Site, str]) -> None:
    """Write down what becomes of each mutant."""
    waiting = list(reversed(sample))
    running: dict[int, tuple[Site, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            site = waiting.pop()
            tests = tests_to_run(site.module)
            if tests:
                cpu_s = 3 * sum(cost_of(test).cpu_s for test in tests) + SPARE_CPU_S
                wait_s = 10 * sum(cost_of(test).wait_s for test in tests) + SPARE_WAIT_S
                running[start(site, tests, cpu_s)] = (site, time.monotonic() + wait_s)
            else:
                fates[site] = "untested"
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in running:
            site, _ = running.pop(child)
            end(child)
            code = os.waitstatus_to_exitcode(status)
            if code == BROKEN:
                sys.exit(f"the tests of {site} could not be run")
            fates[site] = {0: "survived", 5: "untested"}.get(code, "caught")
            print(f"{len(fates)}/{len(sample)} {fates[site]}: {site}", file=sys.stderr, flush=True)
        for child, (site, latest) in list(running.items()):
            if time.monotonic() > latest:
                end(child)
                os.waitpid(child, 0)
                del running[child]
                fates[site] = "caught"
                print(f"{len(fates)}/{len(sample)} caught by the time-out: {site}", file=sys.stderr, flush=True)
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=640)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import azure.servicebus.aio.management  # noqa: F401
    import pytest_asyncio  # noqa: F401
    import uvloop  # noqa: F401

    everything = list(all_sites())
    sample = sorted(everything, key=lambda site: site.digest)[: arguments.sample]
    print(f"{len(sample)} of {len(everything)} mutants", file=sys.stderr)
    fates: dict[Site, str] = {}
    with contextlib.suppress(KeyboardInterrupt):
        run(sample, arguments.jobs, fates)
    caught = sum(fate == "caught" for fate in fates.values())
    print(f"mutation score: {caught} of {len(fates)} mutants caught, {100 * caught / len(fates):.1f} %")
    if arguments.json:
        rows = [
            {**vars(site), "fate": fates[site]} for site in sorted(fates, key=lambda site: (site.module, site.line))
        ]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
