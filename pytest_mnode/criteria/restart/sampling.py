"""Which samples were seen how often, over the steps that count. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_mnode.criteria.restart.lives import Effective
from pytest_mnode.wrong import Wrong, found


def samples_not_seen_once(effective: Iterable[Effective], samples: int, consumed: int) -> Wrong:
    """Samples that an epoch did not see exactly once, over all ranks.

    samples: of one epoch. consumed: by the whole run; of an epoch that it did not finish each
    sample may be missing, as many as it left, but none may come twice.
    """
    seen: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for one in effective:
        for rank, record in one.by_rank.items():
            for sample in record.samples:
                place = (one.step, rank)
                seen.setdefault(record.epoch, {}).setdefault(sample, []).append(place)
    finished, left = divmod(consumed, samples)
    wrong = []
    for epoch in range(finished + bool(left)):
        found_in = seen.pop(epoch, {})
        for sample in sorted(found_in):
            places = found_in[sample]
            if not 0 <= sample < samples:
                wrong.append(f"sample {sample} of epoch {epoch}: there is none")
            elif len(places) > 1:
                at = ", ".join(f"step {step} on rank {rank}" for step, rank in places)
                wrong.append(f"sample {sample} of epoch {epoch}: {len(places)} times, {at}")
        expected = samples if epoch < finished else left
        if epoch < finished:
            missing = sorted(set(range(samples)) - found_in.keys())
            wrong += [f"sample {sample} of epoch {epoch}: not seen" for sample in missing]
        elif len(found_in) != expected:
            wrong.append(f"epoch {epoch}: {len(found_in)} samples in place of {expected}")
    wrong += [f"epoch {epoch}: there was none to be" for epoch in sorted(seen)]
    return found(
        "samples not seen exactly once",
        f"{finished} whole epochs of {samples} samples and {left} more, over all ranks",
        wrong,
    )
