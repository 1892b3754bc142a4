"""Lists the collectors that every recorder has."""

from tracer.core.collectors import Collector
from tracer.evidence.failures import Failures
from tracer.evidence.inspection import Classes
from tracer.evidence.loss_scales import LossScales
from tracer.evidence.rates import Rates

COLLECTORS: tuple[type[Collector], ...] = (Classes, LossScales, Failures, Rates)
