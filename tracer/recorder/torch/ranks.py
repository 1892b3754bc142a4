"""The processes that train together: those of `torch.distributed`, each of which is a worker."""

from typing import Any

import torch.distributed as group

from tracer.recorder import host
from tracer.recorder.backend import Surroundings
from tracer.recorder.frames import CallsUnderWay, Frame, FrameRole


def locate(
    frame: Frame, role: FrameRole, stack: list[Frame], calls_under_way: CallsUnderWay
) -> None:
    """Write into a new frame that its call is executed now, and whether there are other ranks."""
    host.locate(frame, role, stack, calls_under_way)
    frame.distributed = role == "step" and _is_one_of_several()


def surroundings() -> Surroundings:
    """The rank of this process, and all ranks, as workers of `tracer.merge`."""
    if not _is_one_of_several():
        return host.surroundings()
    names = [f"rank:{rank}" for rank in range(group.get_world_size())]
    return Surroundings(
        f"torch.distributed ({group.get_backend()})", names[group.get_rank()], tuple(names)
    )


def _is_one_of_several() -> bool:
    distributed: Any = group
    return bool(
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
