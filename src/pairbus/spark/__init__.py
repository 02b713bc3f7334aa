"""Offers queues as DataFrames, and the syphon at scale. Comes with the extra `spark`; only this imports pyspark.

from pairbus.spark import register, session, syphon

The names are imported on first use. Every Python process that Spark starts imports this package for the reader or the
writer in it, and must not import the SDK and the pipelines, which only the application needs.
"""

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pairbus.spark.connector.options import InvalidOption as InvalidOption
    from pairbus.spark.connector.source import register as register
    from pairbus.spark.runtime.session import session as session
    from pairbus.spark.syphon.api import RunningSyphon as RunningSyphon
    from pairbus.spark.syphon.api import syphon as syphon
    from pairbus.spark.syphon.engine import SparkEngine as SparkEngine

    from .pipelines.archive import archive as archive
    from .pipelines.archive import archived as archived
    from .pipelines.archive import restore as restore
    from .pipelines.ingest import ingest as ingest
    from .pipelines.move import move as move
    from .pipelines.pipeline import carry as carry
    from .pipelines.pipeline import locked as locked
    from .pipelines.settling import abandon as abandon
    from .pipelines.settling import complete as complete
    from .pipelines.settling import dead_letter as dead_letter
    from .pipelines.settling import defer as defer
    from .pipelines.settling import renew as renew

_MODULES = {
    "syphon.engine": ("SparkEngine",),
    "connector.options": ("InvalidOption",),
    "pipelines.archive": ("archive", "archived", "restore"),
    "pipelines.ingest": ("ingest",),
    "pipelines.move": ("move",),
    "pipelines.pipeline": ("carry", "locked"),
    "pipelines.settling": ("abandon", "complete", "dead_letter", "defer", "renew"),
    "runtime.session": ("session",),
    "connector.source": ("register",),
    "syphon.api": ("RunningSyphon", "syphon"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # or a checker would believe in every name

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = found
        return found

    class _Package(ModuleType):
        """`session` and `syphon` are functions here, and modules too: an import of the module, which sets it as an
        attribute, must not hide the function."""

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in _MODULE_OF and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
