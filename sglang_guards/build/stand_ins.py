"""Stand-ins for kernel packages that only a GPU machine has: they can be imported, called and stored, never asked.

Truth, comparison, length, iteration and conversion to a number of a stand-in raise `CannotTell`, so that nothing that
SGLang decides can come from one. `CannotTell` is no `Exception`: SGLang's own ``except Exception`` must not turn it
into an answer, and `asked` remembers it where a bare ``except`` does.

What is taken for granted is only that the target machine has the packages that its SGLang calls.
"""

from __future__ import annotations

import dis
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn

from sglang_guards.build import scalar_types
from sglang_guards.source import distribution

#: Import names of packages whose code is kernels or transport. A real one would probe for a GPU when imported, so a
#: stand-in comes first even where the package is installed: the answer is the same on every machine.
KERNEL_PACKAGES: tuple[str, ...] = (
    "aiter",
    "cutlass",
    "deep_ep",
    "deep_gemm",
    "decord",
    "fast_hadamard_transform",
    "flash_attn",
    "flash_attn_4",
    "flash_attn_interface",
    "flash_mla",
    "flashinfer",
    "humming_kernels",
    "kt_kernel",
    "lightop",
    "mooncake",
    "mori",
    "nixl",
    "quack",
    "sgl_kernel",
    "sgl_kernel_npu",
    "tilelang",
    "torch_memory_saver",
    "triton_kernels",
    "vllm",
)
#: Packages that other libraries ask for too: the real one wins where it is installed.
IF_ABSENT: tuple[str, ...] = ("cuda",)

#: Functions with an answer, by dotted name: also below what `from package import module` gave as a value.
_known: dict[str, Any] = {}
#: Every question that a stand-in could not answer, since `forget`.
asked: list[str] = []


class CannotTell(BaseException):
    """Something was asked of a stand-in that only the real package could answer."""


def forget() -> None:
    """Start a new list of questions."""
    asked.clear()


def refuse(name: str, what: str) -> NoReturn:
    asked.append(f"{what} of {name}")
    raise CannotTell(f"{what} of {name}, which is not here")


def _question(method: str, what: str) -> Callable[..., NoReturn]:
    def ask(self: Any, *args: Any) -> NoReturn:
        refuse(_name(self), what)

    ask.__name__ = method
    return ask


def _name(value: Any) -> str:
    return str(object.__getattribute__(value, "_guards_name"))


#: Special method -> what it would decide.
_QUESTIONS: Mapping[str, str] = {
    "__bool__": "the truth",
    "__len__": "the length",
    "__iter__": "the items",
    "__next__": "the next item",
    "__contains__": "the items",
    "__int__": "the number",
    "__float__": "the number",
    "__complex__": "the number",
    "__index__": "the number",
    "__round__": "the number",
    "__lt__": "the order",
    "__le__": "the order",
    "__gt__": "the order",
    "__ge__": "the order",
}
_BINARY = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "truediv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
)
_ARITHMETIC = (*_BINARY, *(f"r{name}" for name in _BINARY), "neg", "pos", "abs", "invert")


#: Nothing of another package is equal to one of these, whatever it is.
_COMPARED_BY_IDENTITY = (type, FunctionType, BuiltinFunctionType, ModuleType)


#: A literal ``{key: value}``, or a comprehension of one.
_WRITES_A_TABLE = frozenset({"BUILD_MAP", "BUILD_CONST_KEY_MAP", "MAP_ADD"})


class StandInType(ABCMeta):
    """The type of stand-in classes: their attributes (members of an enum, say) are stand-ins too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        made = value_of(f"{cls._guards_name}.{name}")
        setattr(cls, name, made)
        return made

    def __iter__(cls) -> Iterator[Any]:
        refuse(cls._guards_name, "the items")

    def __len__(cls) -> int:
        refuse(cls._guards_name, "the length")

    def __contains__(cls, item: object) -> bool:
        refuse(cls._guards_name, "the items")


class StandIn(metaclass=StandInType):
    """A value of an absent package. Attributes, calls, items and arithmetic give further stand-ins."""

    _guards_name = "a stand-in"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes whatever the real class would."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """SGLang may derive from a class of an absent package, with any keywords."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and _is_plain_function(args[0]):
            return args[0]  # used as a decorator
        return value_of(f"{_name(self)}()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{_name(self)}.{name}"
        made = _answering(_known[full]) if full in _known else value_of(full)
        self.__dict__[name] = made
        return made

    def __getitem__(self, key: Any) -> Any:
        return value_of(f"{_name(self)}[…]")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Taken and forgotten."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (class_of(_name(self)),)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, _COMPARED_BY_IDENTITY):
            return False
        refuse(_name(self), "equality")

    def __ne__(self, other: object) -> bool:
        return not self.__eq__(other)

    def __hash__(self) -> int:
        """A look-up in a set or a table is a question too; the key of a table that is being written is none."""
        caller = sys._getframe(1)
        code = caller.f_code.co_code
        if 0 <= caller.f_lasti < len(code) and dis.opname[code[caller.f_lasti]] in _WRITES_A_TABLE:
            return id(self)
        refuse(_name(self), "the place in a table")

    def __repr__(self) -> str:
        return f"<{_name(self)}, not here>"


for _method, _what in _QUESTIONS.items():
    setattr(StandIn, _method, _question(_method, _what))
for _operator in _ARITHMETIC:
    setattr(StandIn, f"__{_operator}__", lambda self, *other: value_of(_name(self)))


def _is_plain_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def value_of(name: str) -> StandIn:
    made = StandIn()
    made.__dict__["_guards_name"] = name
    return made


def class_of(name: str) -> type:
    """A class of an absent package: may be derived from, and its instances are stand-ins."""
    return type(name.rpartition(".")[2] or "Absent", (StandIn,), {"_guards_name": name})


class AbsentModule(ModuleType):
    """A module of an absent package. Capitalised names are classes, all others are values."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package)

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if name == "__version__":
            return _version(self.__name__.partition(".")[0])
        if self.__name__ == scalar_types.MODULE and name in scalar_types.VALUES:
            return scalar_types.VALUES[name]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        known = _finder_of(self).known
        made = (
            _answering(known[full])
            if full in known
            else class_of(full)
            if name[:1].isupper() and not name.isupper()
            else value_of(full)
        )
        setattr(self, name, made)
        return made


def _finder_of(module: ModuleType) -> Finder:
    spec = module.__spec__
    assert spec is not None
    assert isinstance(spec.loader, Finder)
    return spec.loader


def _answering(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _of_a_fork() -> list[str]:
    """What a distribution of another name requires that brings `sglang`."""
    spec = PathFinder.find_spec("sglang")
    owner = distribution.owner(Path(spec.origin).parent) if spec is not None and spec.origin else None
    return list(owner.requires) if owner is not None else []


def _version(package: str) -> str:
    """The version that the installed SGLang requires of a package, where its metadata says so."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    names = {
        package,
        f"{package}-python",
        package.replace("_", "-"),
        "sglang-kernel" if package == "sgl_kernel" else "",
    }
    try:
        wanted = metadata.requires("sglang") or []
    except metadata.PackageNotFoundError:
        wanted = _of_a_fork()
    for line in wanted:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name.replace("_", "-") in names:
            for specifier in requirement.specifier:
                if specifier.operator in ("==", ">=", "~="):
                    return specifier.version
    refuse(package, "the version")


class Finder(MetaPathFinder, Loader):
    """Finds a stand-in for every module below the named packages. `known` answers calls: dotted name -> value."""

    def __init__(self, packages: Iterable[str], known: Mapping[str, Any] | None = None) -> None:
        self.packages = frozenset(packages)
        self.known = dict(known or {})

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install(
    packages: Iterable[str] = KERNEL_PACKAGES,
    *,
    if_absent: Iterable[str] = IF_ABSENT,
    known: Mapping[str, Any] | None = None,
) -> tuple[Finder, Finder]:
    """Put stand-ins before the installed packages, and for `if_absent` behind them. For a process of its own."""
    first, last = Finder(packages, known), Finder(if_absent, known)
    _known.update(known or {})
    for name in [n for n in sys.modules if n.partition(".")[0] in first.packages]:
        if not isinstance(sys.modules[name], AbsentModule):
            del sys.modules[name]
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    return first, last


def known_values(units: int) -> dict[str, Any]:
    """What can be answered for a kernel package: the number of the simulated GPU's SMs or CUs, and functions that
    SGLang keeps in a set of its own while it is imported (0.5.22 and later, on SM120)."""
    return {
        "deep_gemm.get_num_sms": units,
        "flashinfer.gemm.gemm_base._cute_dsl_gemm_mxfp8_runner": None,
    }


@contextmanager
def installed(packages: Iterable[str] = KERNEL_PACKAGES, *, units: int = 0) -> Iterator[None]:
    """`install` for the time of a block; modules that were imported stay."""
    finders = install(packages, known=known_values(units))
    try:
        yield
    finally:
        for finder in finders:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)


def involved(error: BaseException) -> bool:
    """Whether a stand-in is in the cause of an error, by its whole chain or by what was asked before it."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CannotTell):
            return True
        todo += [one.__cause__, one.__context__]
    return bool(asked)
