"""The collectors that every recorder has."""

from tracer.core.collectors import Collector
from tracer.evidence.failures import Failures
from tracer.evidence.inspection import Classes
from tracer.evidence.interleaving import Interleaving
from tracer.evidence.settings import Use

COLLECTORS: tuple[type[Collector], ...] = (Classes, Use, Interleaving, Failures)
