"""Optimizers and learning-rate schedules: pure functions over nested structures of arrays."""

from dnnarray._optimizers.schedules import cosine_schedule, warmup_schedule
from dnnarray._optimizers.steps import (
    AdamState,
    LionState,
    SGDState,
    adam,
    adamw,
    clip_by_global_norm,
    lion,
    sgd,
)

__all__ = [
    "AdamState",
    "LionState",
    "SGDState",
    "adam",
    "adamw",
    "clip_by_global_norm",
    "cosine_schedule",
    "lion",
    "sgd",
    "warmup_schedule",
]
