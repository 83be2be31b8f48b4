"""Read a script without running it: may it import torch, and which variables does it set that imports depend on?

A nursery imports torch before the script's first line runs, so a variable that the script sets ahead of its own
`import torch` would come too late. Constants can be set for the nursery too; what cannot be known has to start cold.
Purely a function of the source text; it refuses to guess, and leaves a syntax error for the script itself to report.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

# Which variables an import reads was observed with a getenv shim under `import numpy, torch`, a first optimizer,
# DistributedDataParallel and FSDP (torch 2.15, CUDA build). Those of CUDA and NCCL were not among them: they are read
# when a device or a communicator is first used, which never happens in a nursery.
READ_LATER = ("NCCL_", "TORCH_NCCL_", "CUDA_", "GLOO_", "TORCH_GLOO_", "HIP_", "UCX_", "FI_")
READ_BY_TORCH = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "MKLDNN_",
    "ONEDNN_",
    "DNNL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "NVPL_",
    "VECLIB_",
    "NPY_",
    "NUMPY_",
    "PYTORCH_",
    "TORCH_",
    "ATEN_",
    "ACC_",
    "KINETO_",
    "CUBLAS_LOG",
    "CUBLASLT_",
    "NVRTC_",
    "THP_MEM_ALLOC_",
)
READ_BY_TORCHS_COMPILER = (
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TORCH_COMPILE",
    "TORCH_LOGS",
    "TORCHEXPORT_",
    "INDUCTOR_",
    "AOT_",
    "AOTINDUCTOR_",
    "TRITON_",
    "CUTEDSL_",
    "CUTLASS_",
)
READ_BY_LIBRARIES = (
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "DIFFUSERS_",
    "ACCELERATE_",
    "DEEPSPEED_",
    "DS_",
    "BITSANDBYTES_",
    "XFORMERS_",
    "FLASH_ATTENTION_",
    "NUMBA_",
    "NUMEXPR_",
    "JAX_",
    "XLA_",
    "TF_",
    "KERAS_",
    "MPL",
    "WANDB_",
)
# Read when a process starts, or belonging to the launcher: setting them in the script means something else.
NOT_OURS_TO_SET = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "PET_", "HOLDFAST_", "TORCHELASTIC_")
NAMES_NOT_OURS_TO_SET = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PATH",
        "HOME",
    }
)
SECRET_WORDS = frozenset({"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"})
IMPORTS_TORCH = frozenset(
    {
        "torch",
        "torchvision",
        "torchaudio",
        "torchmetrics",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "accelerate",
        "deepspeed",
        "fairscale",
        "torchtitan",
        "timm",
        "monai",
    }
)
_WAYS_TO_IMPORT = frozenset({"importlib", "runpy", "imp", "pkgutil", "code", "zipimport"})
_WAYS_TO_RUN_CODE = frozenset({"__import__", "exec", "eval", "compile"})
_CALL_DEPTH = 4


class Setting(NamedTuple):
    """A constant that the script certainly sets."""

    name: str
    value: str
    line: int
    only_if_unset: bool


class Obstacle(NamedTuple):
    """A variable whose value cannot be known before the script runs."""

    name: str | None  # None: not even the name is known
    line: int
    why: str
    removes: bool = False  # it matters only if the variable is set in the first place


class Scan(NamedTuple):
    may_import_torch: bool = True
    settings: tuple[Setting, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()  # in the way of importing torch ahead of the script
    library_obstacles: tuple[Obstacle, ...] = ()  # in the way of importing other libraries ahead of it


def scan(source: str | bytes) -> Scan:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Scan()
    reader = _Reader()
    try:
        reader.block(tree.body, certain=True)
    except RecursionError:
        return Scan(obstacles=(Obstacle(None, 1, "the script is nested too deeply to be read ahead"),))
    return Scan(
        may_import_torch=any(_may_import_torch(node) for node in ast.walk(tree)),
        settings=tuple(reader.settings.values()),
        obstacles=tuple(reader.obstacles),
        library_obstacles=tuple(reader.library_obstacles),
    )


def _may_import_torch(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_foreign(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return bool(node.level) or _is_foreign(node.module or "")
    return isinstance(node, ast.Name) and node.id in _WAYS_TO_RUN_CODE


def _is_foreign(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in sys.stdlib_module_names or root in _WAYS_TO_IMPORT


class _Torch(Enum):
    """Whether torch has been imported at the line being read."""

    NO = 0
    MAYBE = 1
    YES = 2


class _Reader:
    """Walks what runs when the script runs, in order, following calls of the script's own functions."""

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.obstacles: list[Obstacle] = []
        self.library_obstacles: list[Obstacle] = []
        self._torch = _Torch.NO
        self._os: set[str] = set()
        self._environ: set[str] = set()
        self._putenv: set[str] = set()
        self._unsetenv: set[str] = set()
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._depth = 0

    def block(self, statements: Sequence[ast.stmt], *, certain: bool) -> None:
        for statement in statements:
            self._statement(statement, certain=certain)
            leaves = any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(statement))
            certain = certain and (not leaves or isinstance(statement, ast.FunctionDef | ast.ClassDef))

    def _statement(self, node: ast.stmt, *, certain: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions[node.name] = node
            case ast.ClassDef():
                self.block(node.body, certain=certain)
            case ast.Import() | ast.ImportFrom():
                self._import(node, certain=certain)
            case ast.If():
                self._condition(node, certain=certain)
            case ast.With() | ast.AsyncWith():
                self._calls(node.items, certain=certain)
                self.block(node.body, certain=certain)
            case ast.Try() | ast.TryStar():
                self.block(node.body, certain=certain)
                for handler in node.handlers:
                    self.block(handler.body, certain=False)
                self.block(node.orelse, certain=False)
                self.block(node.finalbody, certain=certain)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.block(node.body, certain=False)
                self.block(node.orelse, certain=False)
            case ast.Match():
                for case in node.cases:
                    self.block(case.body, certain=False)
            case ast.Assign(targets=targets, value=value):
                self._calls([value], certain=certain)
                for target in targets:
                    self._assignment(target, value, certain=certain)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._calls([value], certain=certain)
                self._assignment(target, value, certain=certain)
            case ast.AugAssign(target=target, op=op, value=value):
                if self._is_environ(target) and isinstance(op, ast.BitOr):
                    self._update([value], [], node.lineno, certain=certain)
                elif isinstance(target, ast.Subscript) and self._is_environ(target.value):
                    self._set(_text(target.slice), None, node.lineno, certain=False)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Subscript) and self._is_environ(target.value):
                        self._remove(_text(target.slice), node.lineno)
            case _:
                self._calls([node], certain=certain)

    def _condition(self, node: ast.If, *, certain: bool) -> None:
        self._calls([node.test], certain=certain)
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.block(node.orelse, certain=certain)
        elif test in ("__name__ == '__main__'", "'__main__' == __name__"):
            self.block(node.body, certain=certain)
        else:
            self.block(node.body, certain=False)
            self.block(node.orelse, certain=False)

    def _import(self, node: ast.Import | ast.ImportFrom, *, certain: bool) -> None:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        for module in modules:
            if not relative and module.partition(".")[0] in IMPORTS_TORCH and certain:
                self._torch = _Torch.YES
            elif (relative or _is_foreign(module)) and self._torch is _Torch.NO:
                self._torch = _Torch.MAYBE
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.Import) and alias.name.partition(".")[0] == "os":
                self._os.add(alias.asname or "os")
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                known = {"environ": self._environ, "putenv": self._putenv, "unsetenv": self._unsetenv}
                known.get(alias.name, set()).add(name)

    def _is_os(self, node: ast.expr, attribute: str, names: set[str]) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            return isinstance(node.value, ast.Name) and node.value.id in self._os
        return isinstance(node, ast.Name) and node.id in names

    def _is_environ(self, node: ast.expr) -> bool:
        return self._is_os(node, "environ", self._environ)

    def _assignment(self, target: ast.expr, value: ast.expr, *, certain: bool) -> None:
        if isinstance(target, ast.Subscript) and self._is_environ(target.value):
            self._set(_text(target.slice), _text(value), target.lineno, certain=certain)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assignment(one, its, certain=certain)
        elif isinstance(target, ast.Tuple):
            for one in target.elts:
                if isinstance(one, ast.Subscript) and self._is_environ(one.value):
                    self._set(_text(one.slice), None, one.lineno, certain=False)
        elif isinstance(target, ast.Name) and self._is_environ(value):
            self._environ.add(target.id)

    def _calls(self, nodes: Sequence[ast.AST], *, certain: bool) -> None:
        for node in nodes:
            for call in ast.walk(node):
                if isinstance(call, ast.Call):
                    self._call(call, certain=certain and not _is_conditional(node, call))

    def _call(self, call: ast.Call, *, certain: bool) -> None:
        function, arguments, line = call.func, call.args, call.lineno
        first = arguments[0] if arguments else None
        if isinstance(function, ast.Attribute) and self._is_environ(function.value):
            if function.attr == "setdefault" and len(arguments) == 2:
                self._set(_text(first), _text(arguments[1]), line, certain=certain, only_if_unset=True)
            elif function.attr == "update":
                self._update(arguments, call.keywords, line, certain=certain)
            elif function.attr == "__setitem__" and len(arguments) == 2:
                self._set(_text(first), _text(arguments[1]), line, certain=certain)
            elif function.attr in ("pop", "__delitem__"):
                self._remove(_text(first), line)
            elif function.attr in ("clear", "popitem"):
                self._remove(None, line)
        elif self._is_os(function, "putenv", self._putenv) and len(arguments) == 2:
            self._set(_text(first), _text(arguments[1]), line, certain=certain)
        elif self._is_os(function, "unsetenv", self._unsetenv):
            self._remove(_text(first), line)
        elif isinstance(function, ast.Name) and function.id in self._functions and self._depth < _CALL_DEPTH:
            self._depth += 1
            self.block(self._functions[function.id].body, certain=certain)
            self._depth -= 1

    def _update(
        self, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword], line: int, *, certain: bool
    ) -> None:
        for argument in arguments:
            if isinstance(argument, ast.Dict):
                for key, value in zip(argument.keys, argument.values, strict=True):
                    self._set(_text(key), _text(value), value.lineno, certain=certain)
            else:
                self._set(None, None, line, certain=False)
        for keyword in keywords:
            self._set(keyword.arg, _text(keyword.value), line, certain=certain)

    def _set(
        self, name: str | None, value: str | None, line: int, *, certain: bool, only_if_unset: bool = False
    ) -> None:
        if name is None:
            self._obstacle(Obstacle(None, line, "which variables it sets cannot be known"))
            return
        if name.startswith((*READ_LATER, *NOT_OURS_TO_SET)) or name in NAMES_NOT_OURS_TO_SET:
            return
        if any(word in SECRET_WORDS for word in name.split("_")):
            return  # no import needs it, and what is set ahead is also written down
        if _is_read_by_torch(name) and self._torch is _Torch.YES:
            return  # too late for torch in any start
        if _is_read_by_torch(name) and self._torch is _Torch.MAYBE:
            self._obstacle(Obstacle(name, line, "whether torch is imported before that cannot be known"))
        elif value is None:
            self._obstacle(Obstacle(name, line, "its value cannot be known"))
        elif not certain:
            self._obstacle(Obstacle(name, line, "whether it is set cannot be known"))
        elif name not in self.settings or (self._torch is _Torch.NO and not only_if_unset):
            self.settings[name] = Setting(name, value, line, only_if_unset)

    def _remove(self, name: str | None, line: int) -> None:
        if name is None or not name.startswith(READ_LATER):
            self._obstacle(Obstacle(name, line, "it is removed", removes=True))

    def _obstacle(self, obstacle: Obstacle) -> None:
        name = obstacle.name
        reads_torch = name is None or _is_read_by_torch(name)
        if (reads_torch and self._torch is not _Torch.YES) or (name or "").startswith(READ_BY_TORCHS_COMPILER):
            self.obstacles.append(obstacle)
        elif name is None or name.startswith(READ_BY_LIBRARIES):
            self.library_obstacles.append(obstacle)


def _is_read_by_torch(name: str) -> bool:
    return name.startswith(READ_BY_TORCH) and not name.startswith(READ_BY_TORCHS_COMPILER)


def _is_conditional(statement: ast.AST, call: ast.Call) -> bool:
    """Whether an expression may leave this call out: `a and f()`, `f() if a else b`, a comprehension, a lambda."""
    optional = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(
        isinstance(node, optional) and any(inner is call for inner in ast.walk(node)) for node in ast.walk(statement)
    )


def _text(node: ast.expr | None) -> str | None:
    """The string that an expression certainly is."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Call(func=ast.Name(id="str"), args=[ast.Constant(value=int() | str() as value)], keywords=[]):
            return str(value)
    return None
