"""For the programs of the tests: a batch that some threads feed and others step."""

from typing import Any

from threads import Runner


def batched(
    model: Any, tokenizer: Any, prompts: list[str], feed: Runner, steps: list[Runner]
) -> list[list[int]]:
    """Return the answers of a batch that `feed` builds and feeds and `steps` step in turn."""
    from mlx_lm.generate import BatchGenerator

    newer = hasattr(BatchGenerator, "next_generated")
    stop: Any = [[each] for each in tokenizer.eos_token_ids] if newer else tokenizer.eos_token_ids

    def fed() -> Any:
        made: Any = BatchGenerator(model, max_tokens=8, stop_tokens=stop)
        return made, made.insert([tokenizer.encode(prompt) for prompt in prompts])

    made, uids = feed(fed)
    step = made.next_generated if newer else made.next
    found: dict[int, list[int]] = {uid: [] for uid in uids}
    left = set(uids)
    for at in range(30):
        if not left:
            break
        for response in steps[at % len(steps)](step) or ():
            found[response.uid].append(response.token)
            if response.finish_reason is not None:
                left.discard(response.uid)
    return [found[uid] for uid in uids]
