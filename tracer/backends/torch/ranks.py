"""The processes that train together: the ranks of `torch.distributed`, each a worker."""

from typing import Any

import torch.distributed as group

from tracer.core.backend import NO_STRATEGY, Surroundings


def surroundings() -> Surroundings:
    """The rank of this process, and all ranks, as workers of `tracer.merge`."""
    if not is_one_of_several():
        return NO_STRATEGY
    names = [f"rank:{rank}" for rank in range(group.get_world_size())]
    return Surroundings(
        f"torch.distributed ({group.get_backend()})", names[group.get_rank()], tuple(names)
    )


def is_one_of_several() -> bool:
    """Whether other ranks train with this one."""
    distributed: Any = group
    return bool(
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
