"""The one table of what the agent knows about other libraries.

A new library is a new row here and its tests. The rows cover mlx-lm 0.24 to 0.32.2 and
mlx-vlm 0.1.20 to 0.7.10, read from the sources of sixteen and fifteen of their releases;
a name that the installed release does not have is skipped, so one table serves them all.
"""

from dataclasses import dataclass

CALL = "call"  # a function or method that has done its work when it returns
GENERATOR = "generator"  # a generator function: whoever steps it does the work
PRODUCER = "producer"  # hands arrays back, which are realised first; binds no thread
BATCH = "batch"  # a call whose result holds the prompt caches of what has finished

HANDLE = "generation_stream"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point.

    Attributes:
        path: the name inside its module, dotted for a method.
        kind: `CALL`, `GENERATOR`, `PRODUCER` or `BATCH`.
        since: the first release of the library that has it.
    """

    path: str
    kind: str
    since: str


@dataclass(frozen=True, slots=True)
class Target:
    """One module of a library.

    Attributes:
        module: its dotted name.
        handles: names of module attributes that hold a generation stream.
        entries: its entry points.
    """

    module: str
    handles: tuple[str, ...] = (HANDLE,)
    entries: tuple[Entry, ...] = ()


# `close` and `__del__` of a BatchGenerator are left alone on purpose: they only
# synchronise with the handle, and the collector runs them on whichever thread it
# happens to be on, which must not be bound for that.
_MLX_LM_BATCH = (
    Entry("BatchGenerator.__init__", CALL, "0.28.0"),
    Entry("BatchGenerator.insert", CALL, "0.28.0"),
    Entry("BatchGenerator.next", BATCH, "0.28.0"),
    Entry("BatchGenerator.remove", BATCH, "0.28.4"),
    Entry("BatchGenerator.insert_segments", CALL, "0.31.2"),
    Entry("BatchGenerator.next_generated", BATCH, "0.31.2"),
    Entry("BatchGenerator.extract_cache", BATCH, "0.31.2"),
    Entry("PromptProcessingBatch.prompt", CALL, "0.31.2"),
    Entry("PromptProcessingBatch.generate", CALL, "0.31.2"),
    Entry("GenerationBatch.next", CALL, "0.31.2"),
)

_MLX_VLM_BATCH = (
    Entry("BatchGenerator.__init__", CALL, "0.3.10"),
    Entry("BatchGenerator.insert", CALL, "0.3.10"),
    Entry("BatchGenerator.next", CALL, "0.3.10"),
    Entry("BatchGenerator.remove", CALL, "0.5.0"),
    Entry("PromptProcessingBatch.prompt_step", CALL, "0.5.0"),
    Entry("PromptProcessingBatch.generate", CALL, "0.5.0"),
    Entry("GenerationBatch.next", CALL, "0.5.0"),
)

TARGETS = (
    Target(
        "mlx_lm.generate",
        entries=(
            Entry("generate", CALL, "0.24.0"),
            Entry("stream_generate", GENERATOR, "0.24.0"),
            Entry("generate_step", GENERATOR, "0.24.0"),
            Entry("speculative_generate_step", GENERATOR, "0.24.0"),
            Entry("batch_generate", BATCH, "0.28.0"),
            *_MLX_LM_BATCH,
        ),
    ),
    Target(
        "mlx_lm.utils",
        handles=(),
        entries=(
            Entry("load", PRODUCER, "0.24.0"),
            Entry("load_model", PRODUCER, "0.24.0"),
            Entry("load_adapters", PRODUCER, "0.28.4"),
            Entry("pipeline_load", PRODUCER, "0.28.4"),
            Entry("sharded_load", PRODUCER, "0.30.0"),
        ),
    ),
    Target(
        "mlx_lm.tuner.utils",
        handles=(),
        entries=(Entry("load_adapters", PRODUCER, "0.24.0"),),
    ),
    Target(
        "mlx_lm.models.cache",
        handles=(),
        entries=(
            Entry("load_prompt_cache", PRODUCER, "0.24.0"),
            Entry("make_prompt_cache", PRODUCER, "0.24.0"),
        ),
    ),
    # The server's own thread takes its default stream before it loads the model
    # (0.31.3 on), so the thread is bound as it starts, not at its first step.
    Target("mlx_lm.server", entries=(Entry("ResponseGenerator._generate", CALL, "0.28.4"),)),
    # Up to 0.2.0 mlx-vlm generated from `utils`; 0.1.20 and 0.1.21 have no handle.
    Target(
        "mlx_vlm.utils",
        entries=(
            Entry("generate", CALL, "0.1.20"),
            Entry("stream_generate", GENERATOR, "0.1.20"),
            Entry("generate_step", GENERATOR, "0.1.20"),
            Entry("load", PRODUCER, "0.1.20"),
            Entry("load_model", PRODUCER, "0.1.20"),
            Entry("prepare_inputs", PRODUCER, "0.1.20"),
            Entry("sharded_load", PRODUCER, "0.5.0"),
        ),
    ),
    # A module up to 0.5.x, a package from 0.6.0 on.
    Target(
        "mlx_vlm.generate",
        entries=(
            Entry("generate", CALL, "0.3.0"),
            Entry("stream_generate", GENERATOR, "0.3.0"),
            Entry("generate_step", GENERATOR, "0.3.0"),
            Entry("batch_generate", CALL, "0.3.10"),
            *_MLX_VLM_BATCH,
        ),
    ),
    Target("mlx_vlm.generate.common"),
    Target(
        "mlx_vlm.generate.ar",
        entries=(
            Entry("generate_step", GENERATOR, "0.6.0"),
            Entry("batch_generate", CALL, "0.6.0"),
            *_MLX_VLM_BATCH,
            Entry("PromptProcessingBatch.remove", CALL, "0.7.10"),
            Entry("SpeculativeGenerationBatch.next", CALL, "0.6.0"),
        ),
    ),
    Target(
        "mlx_vlm.generate.dispatch",
        entries=(
            Entry("generate", CALL, "0.6.0"),
            Entry("stream_generate", GENERATOR, "0.6.0"),
        ),
    ),
    Target(
        "mlx_vlm.generate.diffusion",
        entries=(
            Entry("stream_diffusion_generate", GENERATOR, "0.6.0"),
            Entry("stream_diffusion_generate_from_kwargs", GENERATOR, "0.6.0"),
        ),
    ),
    Target(
        "mlx_vlm.generate.image",
        entries=(
            Entry("generate_image", CALL, "0.6.0"),
            Entry("load_image_generation_model", PRODUCER, "0.6.0"),
        ),
    ),
    Target("mlx_vlm.generate.edit_image", entries=(Entry("edit_image", CALL, "0.6.0"),)),
    Target("mlx_vlm.generate.audio", entries=(Entry("generate_audio", CALL, "0.7.1"),)),
    Target(
        "mlx_vlm.generate.video_generation",
        entries=(Entry("generate_video", CALL, "0.6.15"),),
    ),
    Target("mlx_vlm.speculative.common"),
    Target("mlx_vlm.speculative.dflash"),
    Target(
        "mlx_vlm.speculative.drafters",
        handles=(),
        entries=(Entry("load_drafter", PRODUCER, "0.5.0"),),
    ),
    Target("mlx_vlm.speculative.eagle3"),
    Target("mlx_vlm.speculative.mtp"),
    # A module with the server's thread in 0.5.x, a package from 0.6.0 on.
    Target("mlx_vlm.server", entries=(Entry("ResponseGenerator._run", CALL, "0.5.0"),)),
    Target(
        "mlx_vlm.server.generation",
        entries=(Entry("ResponseGenerator._run", CALL, "0.6.0"),),
    ),
)

# The libraries whose versions stand in every record: attribute name, package.
VERSIONED = (("mlx", "mlx.core"), ("mlx_lm", "mlx_lm"), ("mlx_vlm", "mlx_vlm"))


def table(extra_modules: tuple[str, ...] = ()) -> dict[str, Target]:
    """Return the targets by module name, with a handle-only row for each extra module."""
    rows = {target.module: target for target in TARGETS}
    for module in extra_modules:
        rows.setdefault(module, Target(module))
    return rows
