"""The report as text: the answer, the notes and findings, and tables that fit the terminal.

Its sentences are the same in all formats. The tables are those of `tracer.reporters.columns`. The
texts of `tracer explain` are here as well.
"""

from collections.abc import Collection, Sequence

from rich.text import Text

from tracer.findings.rule import RULES, at_least, findings, rule_of
from tracer.layout import paragraph, printed
from tracer.model import counts as measures
from tracer.model.dialects import DIALECTS, KIND_WORDS
from tracer.model.evidence import NoStep
from tracer.model.phrases import (
    class_of,
    endings,
    never_reached,
    no_steps,
    program_lines,
    reason,
    replica_noun,
    runs,
    sentences_on,
)
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.reporters import columns
from tracer.reporters.columns import ERROR, STYLES, WARNING, By
from tracer.words import all_true, first_true, listed, plural, shown, some, span, times

MAX_ROWS = 30  # rows of a table in the whole report
MAX_ROWS_IN_FULL = 1000  # rows of a single table
MANY_OPTIMIZERS = 3  # more have a line each
UNFINISHED = "UNFINISHED: the run went on, or was killed, after this was written."
_INCOMPLETE = 'INCOMPLETE: the counts are "at least", unless a note says otherwise.'
_FINDINGS = "What looks wrong (tracer explain CODE tells more)"


def render(
    trace: Trace,
    by: By | None = None,
    part: columns.Part = columns.WHOLE,
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """The report on a trace: question, answer, notes, findings, and tables.

    `by` selects one table and shows all its rows. Without it, the report has every table with
    content, shortened if it is long, or one line for each optimizer if there are more than three.
    `part` picks rows. `width` is in terminal cells, 80 by default. `color` adds ANSI styles.

    Raises `tracer.UnknownName` as `columns.sections` does.
    """
    width = max(20, width or 80)
    sections = columns.sections(trace, by, part)
    many = len(sections) > MANY_OPTIMIZERS and not part.text
    lines = _head(trace, part, width, [summary for summary, _ in sections] if many else [])
    if many:
        lines += paragraph("(the report by variable has a table for each)", width, "  ", "dim")
    for summary, tables in [] if many and by is None else sections:
        if tables:
            lines += [Text(), *paragraph(headline(summary), width, style="bold")]
        for table in tables:
            most, form = (MAX_ROWS_IN_FULL, " as csv") if by else (MAX_ROWS, "")
            hint = f": the report by {table.by}{form} has them all"
            lines += [Text(), *columns.drawn(table, width, most, hint)]
    for ran in runs(trace):
        lines += [Text(), *paragraph(f"Ran: {ran}", width)]
    return printed(lines, width, color)


# The top of the report.


def _head(trace: Trace, part: columns.Part, width: int, many: Sequence[Summary]) -> list[Text]:
    """The lines above the tables: an answer for each optimizer, or a line if there are `many`."""
    deep = "    " if len(summaries_of(trace)) > 1 else "  "
    texts = [(shown(part.text), "", WARNING)] if part.text else []
    texts.append((question(trace), "", "bold"))
    for said, known in () if many else sentences(trace, part.roots):
        texts += [(sentence, "  ", "") for sentence in said]
        texts += [(fact, deep, "") for fact in known]
    for summary in many:
        updates = summary.total(measures.updates)
        text = f"{headline(summary)}, {some(updates, 'update')}"
        texts.append((text, "  ", "" if updates else ERROR))
    texts += [(total, "  ", "") for total in in_all(trace)]
    for warning in warnings(trace):
        texts += [("", "", ""), (warning, "", WARNING if warning is UNFINISHED else ERROR)]
    if trace.complete and trace.notes:
        texts.append(("", "", ""))
    begin, indent = ("Note: ", "") if trace.complete else ("", "  - ")
    texts += [(begin + shown(note), indent, WARNING) for note in trace.notes]
    # Info findings repeat the counts, and a healthy run has some, too: TensorFlow traces a function
    # twice, the last batch is smaller.
    if reported := at_least(findings(trace), "warning"):
        texts += [("", "", ""), (_FINDINGS, "", "bold")]
    for finding in reported:
        text = f"{finding.severity}[{finding.code}]: {finding.text}"
        texts += [(text, "  ", STYLES[finding.severity]), (finding.advice, "    ", "")]
    return [line for text, *form in texts for line in paragraph(text, width, *form)]


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the apply methods of this run."""
    names = dict.fromkeys(name for summary in summaries_of(trace) for name in _names(summary))
    default = f"How often did {listed([*names]) or 'the apply methods'} run?"
    return DIALECTS[trace.data.library()].advice("question", default)


def answer(trace: Trace) -> str:
    """How often the apply methods ran: on a line for each optimizer, and how often Python called.

    The two are never added up. In an incomplete trace, all counts are "at least". If the program
    overrides a method that nothing calls, the answer begins with it, because that is the user's
    question.
    """
    return "\n".join(" ".join(said) for said, _ in sentences(trace))


def sentences(
    trace: Trace, roots: Collection[int] | None = None
) -> list[tuple[list[str], list[str]]]:
    """What ran and what Python called, and the facts, for each optimizer or for `roots`.

    An optimizer is named if it is not alone.
    """
    summaries, lines, found = summaries_of(trace), program_lines(trace), []
    for summary in summaries:
        if roots is not None and summary.root not in roots:
            continue
        said = [shown(no_steps(summary))]
        if summary.steps or (summary.methods and not any(summary.evidence(NoStep))):
            made = f" ({shown(lines[summary.root])})" if summary.root in lines else ""
            name = f"{shown(summary.optimizers[0].name)}{made}: " if len(summaries) > 1 else ""
            unreached = never_reached(summary) if summary.dialect.apply_methods else []
            said = [name + " ".join([*unreached, *_executions(summary)]), _calls(summary)]
        found.append((said, sentences_on(summary)))
    return found or [(["No optimizer was traced.", "So there is nothing to count."], [])]


def in_all(trace: Trace) -> list[str]:
    """The totals of several optimizers."""
    summaries, least = summaries_of(trace), "" if trace.complete else "at least "
    steps = some(sum(summary.steps for summary in summaries), "optimizer step")
    updates = some(sum(summary.total(measures.updates) for summary in summaries), "update")
    said = f"{len(summaries):,} optimizers: {least}{updates} in {least}{steps}."
    return [said] if len(summaries) > 1 else []


def warnings(trace: Trace) -> list[str]:
    """What readers must know before the counts: the run is unfinished, failed, or is incomplete."""
    unfinished = all_true((not trace.finished, UNFINISHED))
    return [*unfinished, *endings(trace), *all_true((not trace.complete, _INCOMPLETE))]


def headline(summary: Summary) -> str:
    """`Adam (tf_keras legacy) under MirroredStrategy: 64 steps, 5 variables, 2 replicas`."""
    trace, passed, replicas = summary.trace, summary.passed, len(summary.replicas)
    (root, *nested), workers = summary.optimizers, summary.workers
    copy, strategy = replica_noun(trace), trace.data.environment.get("strategy")
    line, brand = program_lines(trace).get(summary.root), KIND_WORDS[root.kind].brand or root.kind
    keras2 = "tf_keras" if "tf_keras" in trace.data.environment else "Keras 2"
    shards = max((trace.variables[index].shards for index in passed), default=1)
    of = "" if passed == summary.variables else f"{len(passed):,} of "
    named = len(summaries_of(trace)) > 1 and root.name != class_of(root)
    made = all_true(
        (named, f' "{root.name}"'),
        (line, f" of {line}"),
        (nested, f" around {', '.join(map(class_of, nested))}"),
        (True, f" ({brand.format(keras2=keras2)})"),
        (strategy and ", " not in strategy, f" under {strategy}"),  # else of which one is unknown
    )
    did = all_true(
        (True, f"{'' if trace.complete else 'at least '}{some(summary.steps, 'step')}"),
        (True, f"{of}{some(len(summary.variables), summary.dialect.variable)}"),
        (shards > 1, f"sharded up to {shards:,} ways"),
        (replicas > 1, some(replicas, copy)),
        (copy == "replica" and len(workers) > 1, some(len(workers), "worker")),
        (len(workers) == 1 < len(trace.workers), f"in {', '.join(workers)}"),
    )
    return shown(f"{class_of(root)}{''.join(made)}: {', '.join(did)}")


def _names(summary: Summary) -> list[str]:
    """The names of the methods in question."""
    return [shown(summary.trace.methods[index].name) for index in summary.apply_methods]


# What ran.


def _executions(summary: Summary) -> list[str]:
    """A sentence on each method, or on the updates if no method makes them."""
    if not summary.dialect.apply_methods:
        return [_ran(summary, "", measures.updates) + _nothing_updated(summary)]
    said = [
        _ran(summary, name, measures.of_methods([index]))
        for index, name in zip(summary.apply_methods, _names(summary), strict=True)
    ] or [f"No apply method ran in {some(summary.steps, 'step')}"]
    return [*(f"{each}." for each in said[:-1]), said[-1] + _nothing_updated(summary)]


def _ran(summary: Summary, name: str, measure: measures.Measure) -> str:
    """`update_step ran 4 times in each of 16 steps: 64 executions in 64 steps`.

    The rate, its steps and its replicas multiply to the total: ranges, if replicas differ.
    """
    least = "" if summary.trace.complete else "at least "
    outside, steps = summary.outside(measure), [*summary.steps_on.values()] or [0]
    total, lost = summary.total(measure) - outside, summary.step_unknown(measure)
    spreads = [summary.spread(measure, replica=replica) for replica in summary.replicas]
    rates = [count for spread in spreads for (count,) in spread if count] or [0]
    ran_in = [spread.total() - spread[(0,)] for spread in spreads] or [0]
    rate, within = (min(rates), max(rates)), some((min(ran_in), max(ran_in)), "step")
    each = f"each of {within}" if max(ran_in) > 1 else within
    each, often = ("each step", "a step") if ran_in == steps else (each, f"in {each}")
    number = some(len(summary.replicas), replica_noun(summary.trace))
    where = f" on each of {number}" if len(summary.replicas) > 1 else ""
    made = "kept" if summary.total(measures.discarded) else summary.dialect.advice("made", "made")
    never = "never ran" if summary.trace.complete else "was not seen to run"
    ran = first_true(
        (not total + outside, f"{name} {never}: " if name else f"No update was {made}: "),
        (lost or not total, f"{name}: " if name else ""),
        (name, f"{name} ran {times(rate)} {often}{where}: "),
        (True, f"{each.capitalize()} {made} {some(rate, 'update')}{where}: "),
    )
    counted = f"{least}{total:,} {plural(total, 'execution' if name else 'update')}"
    unknown = f"; the step of {lost:,} of them is not known" if lost else ""
    direct = f" and {outside:,} outside any step" if outside else ""
    return f"{ran}{counted} in {least}{some((min(steps), max(steps)), 'step')}{unknown}{direct}"


def _nothing_updated(summary: Summary) -> str:
    """The end of a sentence: how many steps updated nothing, why, and what was thrown away."""
    empty = [summary.spread(measures.updates, replica=each)[(0,)] for each in summary.asked_on]
    known, lost = reason(summary), summary.total(measures.discarded)
    why = f" ({known})" if known else ""
    said = ""
    if not summary.total(measures.updates):
        said = why if summary.steps else ""
    elif any(empty) and not summary.step_unknown(measures.updates):
        said = f"; {span((min(empty), max(empty)))} of the steps updated nothing{why}"
    thrown = f"; {some(lost, 'result')} {plural(lost, 'was', 'were')} thrown away"
    return f"{said}{thrown if lost else ''}."


# What Python called.


def _calls(summary: Summary) -> str:
    """How often Python called the methods in question, eagerly and while it traced graphs."""
    methods, by_method = summary.trace.methods, summary.dialect.apply_methods
    of_steps = [index for index in reversed(summary.methods) if methods[index].role == "step"]
    chosen = summary.apply_methods if by_method else of_steps
    if by_method and not chosen:
        return "Python did not call one either."
    names = listed([shown(methods[index].name) for index in chosen])
    body, verb = ("Their Python bodies", "were") if len(chosen) > 1 else ("Its Python body", "was")
    subject = f"{body if by_method else names or summary.dialect.step_method} {verb}"
    calls, ran = [summary.calls(index) for index in chosen], measures.of_methods(chosen)
    eager, tracing = (sum(each[context] for each in calls) for context in (0, 1))
    if not eager + tracing:
        return f"{subject} not called while the tracer watched."
    (graphs, idle), noun = summary.graphs(ran), summary.dialect.program
    never = ", which never ran" if idle == graphs else f"; {idle:,} of them never ran"
    of = f" {some(graphs, noun)}{never if idle and not summary.idle_as_usual else ''}"
    traced = f"while tracing{of if graphs else ''}"
    every_time = {1: "", 2: "both times "}.get(eager + tracing, "all ")
    how = first_true(
        (eager and tracing, f": {eager:,} eagerly, {tracing:,} {traced}"),
        (tracing, f", {every_time}{traced}"),
        (by_method, f", {every_time}eagerly"),
    )
    number = times(eager + tracing)
    if len(calls) > 1:
        number = f"{listed([f'{sum(each):,}' for each in calls])} times"
    return f"{subject} called {'' if summary.trace.complete else 'at least '}{number}{how}."


# The texts of `tracer explain`, those of words that are no findings first.


_WORDS = {
    "frozen": (
        "No finding, but a word of the table of variables: the trainable of the variable or its "
        "layer (PyTorch: its requires_grad) is False, in all steps or since the step named, so "
        "the optimizer does not update it. Nothing to do if that is meant. Otherwise set it to "
        "True, and then compile the model or make the optimizer. Variables that are frozen and "
        "updated all the same are the finding frozen-but-updated."
    ),
    "not-passed": (
        "No finding, but words of the table of variables: the variable is trainable and in a model "
        "that the optimizer trains, and the program never passed it to the optimizer, which "
        "therefore cannot update it. Nothing to do if it is not meant to learn, or if other code "
        "updates it. Otherwise make the optimizer for all variables of the model. Where a trace "
        "shows that the variable should learn, there is the finding never-passed."
    ),
}


def listing(width: int | None, color: bool) -> str:
    """A line for each rule; titles wrap in a narrow terminal."""
    width, longest = max(40, width or 80), max(len(rule.code) for rule in RULES)
    lines = [
        line
        for rule in RULES
        for line in paragraph(rule.title, width, f"{rule.code:{longest}}  {rule.severity:7}  ")
    ]
    return printed(lines, width, color)


def explanation(code: str, width: int | None, color: bool) -> str:
    """The full explanation of a rule, or of a word of the table of variables."""
    width = max(40, width or 80)
    if code in _WORDS:
        return printed(paragraph(_WORDS[code], width), width, color)
    rule = rule_of(code)
    lines = paragraph(f"{rule.code} ({rule.severity}): {rule.title}", width, style="bold")
    texts = {"Why it matters": rule.why, **rule.advices, "When it is reported": rule.explanation}
    for name, text in texts.items():
        lines += [Text(), Text(name, "bold"), *paragraph(text, width, "  ")]
    return printed(lines, width, color)
