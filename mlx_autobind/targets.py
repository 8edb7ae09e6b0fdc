"""The one table of what the agent knows about other libraries.

A new library is a new row here and its tests. The rows cover mlx-lm 0.24 to 0.32.2 and
mlx-vlm 0.1.20 to 0.7.10, read from the sources of sixteen and fifteen of their releases,
and one release each of mlx-audio (0.6.2), mlx-whisper (0.4.3) and mlx-embeddings (0.1.0);
a name that the installed release does not have is skipped, so one table serves them all.
"""

from dataclasses import dataclass
from types import ModuleType

CALL = "call"  # a function or method that has done its work when it returns
LOOP = "loop"  # a call that only steps other entry points and collects what they give
BODY = "body"  # what a thread of the library's own runs for as long as it lives
GENERATOR = "generator"  # a generator function: whoever steps it does the work
PRODUCER = "producer"  # hands arrays back, which are realised first; binds no thread
BATCH = "batch"  # a call whose result holds the prompt caches of what has finished
STATEFUL = "stateful"  # a call that leaves the state of its generation on the model
PREPARER = "preparer"  # a producer if the program calls it, a part of a step if the library does

# What an entry point is to the generation that a span stands for; a generator is one, or
# belongs to one.
WHOLE = "whole"  # steps one generator to its end
BEGINS = "begins"  # adds prompts to a batch, each a generation
STEPS = "steps"  # takes a step of a batch
ENDS = "ends"  # takes prompts out of a batch

# The operation of the GenAI semantic conventions, where it is not `OPERATION`.
OPERATION = "text_completion"
OPERATIONS = {"mlx_vlm": "generate_content"}

HANDLE = "generation_stream"

# mlx-vlm's generations share the processor's up to 0.4.x, its batches in every release.
DETOKENIZER = "detokenizer"

# Where models keep the position of the generation under way: attributes of their modules
# that a forward pass assigns (read: every package of ``mlx_vlm.models`` that does, in
# mlx-vlm 0.3.9, 0.4.4 and 0.7.10, among them twenty of the Qwen, GLM and MiniCPM families).
STATE = (
    "_rope_deltas",
    "_position_ids",
    # falcon_ocr and falcon_perception
    "_rope_delta",
    "_pos_hw",
    "_full_attn_mask",
    "_last_hidden_state",
    "_pending_coord_xy",
    "_pending_size_hw",
    "_current_det",
    "_detections",
    "_orig_hw",
    "_prefill_grid_hw",
    "_prefill_hidden_state",
    "_prefill_input_ids",
    "_prefill_pixel_values",
    "_segm_features",
    "_segm_features_computed",
    # molmo_point
    "_generated_ids_list",
    "_image_cache",
    "_last_predicted_patch_id",
    "_token_bounds",
    # granite4_vision and gemma4_unified
    "_deepstack_target_layers",
    "no_chunked_prefill",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point.

    Attributes:
        path: the name inside its module, dotted for a method.
        kind: `CALL`, `LOOP`, `BODY`, `GENERATOR`, `PRODUCER`, `BATCH`, `STATEFUL` or
            `PREPARER`.
        since: the first release of the library that has it.
        own: an attribute of its argument ``processor`` that it resets and fills, so that
            each generation has to have one of its own.
        part: `WHOLE`, `BEGINS`, `STEPS` or `ENDS`; empty if it is none of them.
    """

    path: str
    kind: str
    since: str
    own: str | None = None
    part: str = ""


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


def _loaders(module: str, *names: str, since: str) -> Target:
    """Return a row for functions that only hand arrays back."""
    entries = tuple(Entry(name, PRODUCER, since) for name in names)
    return Target(module, handles=(), entries=entries)


# `close` and `__del__` of a BatchGenerator are left alone on purpose: they only
# synchronise with the handle, and the collector runs them on whichever thread it
# happens to be on, which must not be bound for that.
_MLX_LM_BATCH = (
    Entry("BatchGenerator.__init__", CALL, "0.28.0"),
    Entry("BatchGenerator.insert", CALL, "0.28.0", part=BEGINS),
    Entry("BatchGenerator.next", BATCH, "0.28.0", part=STEPS),
    Entry("BatchGenerator.remove", BATCH, "0.28.4", part=ENDS),
    Entry("BatchGenerator.insert_segments", CALL, "0.31.2", part=BEGINS),
    Entry("BatchGenerator.next_generated", BATCH, "0.31.2", part=STEPS),
    Entry("BatchGenerator.extract_cache", BATCH, "0.31.2"),
    Entry("PromptProcessingBatch.prompt", CALL, "0.31.2"),
    Entry("PromptProcessingBatch.generate", CALL, "0.31.2"),
    Entry("GenerationBatch.next", CALL, "0.31.2"),
)

_MLX_VLM_BATCH = (
    Entry("BatchGenerator.__init__", CALL, "0.3.10"),
    Entry("BatchGenerator.insert", STATEFUL, "0.3.10", part=BEGINS),
    Entry("BatchGenerator.next", STATEFUL, "0.3.10", part=STEPS),
    Entry("BatchGenerator.remove", STATEFUL, "0.5.0", part=ENDS),
    Entry("PromptProcessingBatch.prompt_step", CALL, "0.5.0"),
    Entry("PromptProcessingBatch.generate", CALL, "0.5.0"),
    Entry("GenerationBatch.next", CALL, "0.5.0"),
)

TARGETS = (
    Target(
        "mlx_lm.generate",
        entries=(
            Entry("generate", LOOP, "0.24.0", part=WHOLE),
            Entry("stream_generate", GENERATOR, "0.24.0"),
            Entry("generate_step", GENERATOR, "0.24.0"),
            Entry("speculative_generate_step", GENERATOR, "0.24.0"),
            Entry("batch_generate", LOOP, "0.28.0"),
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
    Target("mlx_lm.server", entries=(Entry("ResponseGenerator._generate", BODY, "0.28.4"),)),
    # Up to 0.2.0 mlx-vlm generated from `utils`; 0.1.20 and 0.1.21 have no handle.
    Target(
        "mlx_vlm.utils",
        entries=(
            Entry("generate", LOOP, "0.1.20", part=WHOLE),
            Entry("stream_generate", GENERATOR, "0.1.20", own=DETOKENIZER),
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
            Entry("generate", LOOP, "0.3.0", part=WHOLE),
            Entry("stream_generate", GENERATOR, "0.3.0", own=DETOKENIZER),
            Entry("generate_step", GENERATOR, "0.3.0"),
            Entry("batch_generate", STATEFUL, "0.3.10", own=DETOKENIZER),
            *_MLX_VLM_BATCH,
        ),
    ),
    Target("mlx_vlm.generate.common"),
    Target(
        "mlx_vlm.generate.ar",
        entries=(
            Entry("generate_step", GENERATOR, "0.6.0"),
            Entry("batch_generate", STATEFUL, "0.6.0", own=DETOKENIZER),
            *_MLX_VLM_BATCH,
            Entry("PromptProcessingBatch.remove", CALL, "0.7.10"),
            Entry("SpeculativeGenerationBatch.next", CALL, "0.6.0"),
        ),
    ),
    Target(
        "mlx_vlm.generate.dispatch",
        entries=(
            Entry("generate", LOOP, "0.6.0", part=WHOLE),
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
            Entry("load_image_model", PRODUCER, "0.6.0"),
        ),
    ),
    Target(
        "mlx_vlm.generate.edit_image",
        entries=(
            Entry("edit_image", CALL, "0.6.0"),
            Entry("load_image_edit_model", PRODUCER, "0.6.0"),
        ),
    ),
    Target("mlx_vlm.generate.audio", entries=(Entry("generate_audio", CALL, "0.7.1"),)),
    Target(
        "mlx_vlm.generate.video_generation",
        entries=(
            Entry("generate_video", CALL, "0.6.15"),
            Entry("load_video_generation_model", PRODUCER, "0.6.15"),
        ),
    ),
    _loaders("mlx_vlm.embedding_loader", "load_embedding_model", since="0.6.15"),
    _loaders("mlx_vlm.encoder_loader", "load_encoder_model", since="0.6.15"),
    _loaders(
        "mlx_vlm.reranker_loader",
        "load_reranker",
        "load_sequence_classification_model",
        since="0.6.15",
    ),
    _loaders("mlx_vlm.privacy_filter", "load_privacy_filter", since="0.7.1"),
    _loaders(
        "mlx_vlm.token_classification",
        "load_token_classification_model",
        "load_token_classifier",
        since="0.7.10",
    ),
    _loaders("mlx_vlm.models.cache", "make_prompt_cache", since="0.3.0"),
    _loaders("mlx_vlm.trainer.utils", "apply_lora_layers", since="0.1.20"),
    _loaders("mlx_vlm.trainer.peft.utils", "load_adapters", since="0.7.10"),
    _loaders("mlx_vlm.trainer.peft.adapter_utils", "load_adapters", since="0.7.10"),
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
    Target("mlx_vlm.server", entries=(Entry("ResponseGenerator._run", BODY, "0.5.0"),)),
    Target(
        "mlx_vlm.server.generation",
        entries=(Entry("ResponseGenerator._run", BODY, "0.6.0"),),
    ),
    _loaders("mlx_vlm.server.realtime", "load_realtime_voicechat", since="0.6.15"),
    # A copy of mlx-lm's generation, and a handle of its own besides.
    Target(
        "mlx_audio.lm.generate",
        entries=(
            Entry("generate", LOOP, "0.6.2", part=WHOLE),
            Entry("stream_generate", GENERATOR, "0.6.2"),
            Entry("generate_step", GENERATOR, "0.6.2"),
        ),
    ),
    Target("mlx_audio.stt.generate", entries=(Entry("generate_transcription", CALL, "0.6.2"),)),
    Target("mlx_audio.tts.generate", handles=(), entries=(Entry("generate_audio", CALL, "0.6.2"),)),
    _loaders("mlx_audio.lm.load", "load_lm", since="0.6.2"),
    _loaders("mlx_audio.utils", "base_load_model", "load_model", since="0.6.2"),
    _loaders("mlx_audio.stt.utils", "load", "load_model", since="0.6.2"),
    _loaders("mlx_audio.tts.utils", "load", "load_model", since="0.6.2"),
    _loaders("mlx_audio.sts.utils", "load", "load_model", since="0.6.2"),
    # No handles: what breaks is arrays left lazy, such as the positions of Whisper.
    _loaders("mlx_whisper.load_models", "load_model", since="0.4.3"),
    _loaders("mlx_whisper.audio", "log_mel_spectrogram", since="0.4.3"),
    Target("mlx_whisper.transcribe", handles=(), entries=(Entry("transcribe", CALL, "0.4.3"),)),
    Target(
        "mlx_whisper.decoding",
        handles=(),
        entries=(Entry("decode", CALL, "0.4.3"), Entry("detect_language", CALL, "0.4.3")),
    ),
    _loaders(
        "mlx_embeddings.utils", "load", "load_model", "prepare_inputs", "generate", since="0.1.0"
    ),
)

# The packages that have a row.
PACKAGES = tuple(dict.fromkeys(target.module.partition(".")[0] for target in TARGETS))

# The first and the last releases, by package, that the rows were tested with.
TESTED = {
    "mlx_lm": ("0.24", "0.32"),
    "mlx_vlm": ("0.1.20", "0.7"),
    "mlx_audio": ("0.6.2", "0.6.2"),
    "mlx_whisper": ("0.4.3", "0.4.3"),
    "mlx_embeddings": ("0.1.0", "0.1.0"),
}


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def newer(package: str, version: str) -> bool:
    """Tell whether `version` came after the last releases that the rows were tested with."""
    last = _numbers(TESTED[package][1])
    return _numbers(version)[: len(last)] > last


def tested(package: str, version: str) -> bool:
    """Tell whether `version` is a release from the first to any of the last ones tested."""
    return _numbers(TESTED[package][0]) <= _numbers(version) and not newer(package, version)


# Rows for every module of a package. Each model of mlx-vlm is a package of its own.
FAMILIES = (
    Target(
        "mlx_vlm.models",
        handles=(),
        entries=(
            Entry("Model.get_input_embeddings", PREPARER, "0.1.20"),
            Entry("Model.encode_image", PREPARER, "0.4.0"),
            Entry("Model.encode_images", PREPARER, "0.6.15"),
        ),
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


def row(rows: dict[str, Target], module: str) -> Target | None:
    """Return what `rows`, or a family, say of `module`; None if it is no target."""
    found = rows.get(module)
    if found is None:
        for family in FAMILIES:
            if module.startswith(f"{family.module}."):
                return family
    return found


def name_of(module: ModuleType) -> str:
    """Return the dotted name of `module`, also where it runs as ``__main__``."""
    spec = getattr(module, "__spec__", None)
    name: str = module.__name__ if spec is None else spec.name
    return name
