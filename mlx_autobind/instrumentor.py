"""The agent as an OpenTelemetry instrumentation, and as post-import hooks for autowrapt.

Usage, where mlx-autobind is installed, with no change to the program::

    opentelemetry-instrument python server.py
    AUTOWRAPT_BOOTSTRAP=mlx_autobind python server.py

``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=mlx_autobind`` has the first leave the agent out, and
``MLX_AUTOBIND=off`` has both. By hand::

    from mlx_autobind.instrumentor import MLXAutobindInstrumentor
    MLXAutobindInstrumentor().instrument()
"""

# Imported while the interpreter starts, where an error would end it (autowrapt catches none), so
# that nothing is imported here that an interpreter could lack.
import os
import sys

import mlx_autobind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


class MLXAutobindInstrumentor:
    """What ``opentelemetry-instrument`` loads, by the group ``opentelemetry_instrumentor``.

    It has the methods of ``opentelemetry.instrumentation.instrumentor.BaseInstrumentor`` and does
    not derive from it, so that it is one and the same where that is not installed. No loader asks
    for the class (read: opentelemetry-instrumentation 0.48b0 to 0.66b2). All instances are alike.

    The spans and metrics go to the providers that are set for the process. Not thread-safe, as
    `mlx_autobind.install` is not. Since 0.1.0.
    """

    def instrumentation_dependencies(self) -> "Collection[str]":
        """Return no requirement: any of the libraries will do, and without one nothing happens.

        Thread-safe. Since 0.1.0.

        Returns:
            An empty collection.
        """
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """True if the process is under the agent, however it came there.

        Thread-safe. Since 0.1.0.
        """
        return mlx_autobind._finder in sys.meta_path

    def instrument(self, **_kwargs: object) -> None:
        """Put the process under the agent, unless ``MLX_AUTOBIND=off``. Idempotent.

        Not thread-safe, as `mlx_autobind.install` is not. Since 0.1.0.

        Args:
            _kwargs: what loaders pass to every instrumentation, such as ``skip_dep_check``. None
                of it makes a difference; ``tracer_provider`` and ``meter_provider`` neither.
        """
        from mlx_autobind import settings

        # Not `current()`, which would read, before the program runs, what the program may yet set.
        if settings.read(os.environ).enabled:
            mlx_autobind.install()

    def uninstrument(self, **_kwargs: object) -> None:
        """Leave the process as if the agent had never been there. Idempotent.

        Not thread-safe, as `mlx_autobind.uninstall` is not. Since 0.1.0.

        Args:
            _kwargs: what loaders pass; none of it makes a difference.
        """
        mlx_autobind.uninstall()


def imported(_module: object) -> None:
    """Do nothing: wrapt's post-import hook of each library, for the group ``mlx_autobind``.

    wrapt imports the module of a hook as it registers the hook, and importing the package installs
    the agent. To install it here once more would undo an `uninstall` of the program's.
    """
