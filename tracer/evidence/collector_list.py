"""Lists the collectors that every recorder has."""

from tracer.core.collectors import Collector
from tracer.evidence.failures import Failures
from tracer.evidence.inspection import Classes
from tracer.evidence.rates import Rates
from tracer.evidence.settings import Settings

COLLECTORS: tuple[type[Collector], ...] = (Classes, Settings, Failures, Rates)
